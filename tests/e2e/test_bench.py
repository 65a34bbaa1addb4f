"""quire bench --profile: what it counts is what the model's configuration implies, and its times add up."""
import json

import pytest
from test_program import run
from tiny import TINY

PROMPT, GENERATED, BATCH = 40, 5, 3
CONFIG = json.loads((TINY / "config.json").read_text())


@pytest.fixture(scope="module")
def results():
    flags = ("-p", PROMPT, "-n", GENERATED, "--batch", BATCH, "-r", 2, "--threads", 2, "--profile", "--json")
    done = run("bench", TINY, *flags)
    assert done.returncode == 0, done.stderr
    return {result["name"]: result["profile"] for result in json.loads(done.stdout)["results"]}


def of(profile):
    return {entry["name"]: entry for entry in profile["operators"]}


def seen_keys(layer_type, position):
    window = CONFIG["sliding_window"] if layer_type == "sliding_attention" else position + 1
    return min(window, position + 1)


def operations(positions, logits):
    """By operator, of all steps together, by the configuration alone."""
    c, rows = CONFIG, len(positions)
    heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    layers = c["num_hidden_layers"]
    keys = sum(seen_keys(kind, p) for kind in c["layer_types"] for p in positions)
    return {
        "qkv": layers * 2 * rows * c["hidden_size"] * (heads + 2 * kv) * dim,
        "attention": 4 * heads * dim * keys,
        "attention output": layers * 2 * rows * heads * dim * c["hidden_size"],
        "gate/up": layers * 4 * rows * c["hidden_size"] * c["intermediate_size"],
        "down": layers * 2 * rows * c["hidden_size"] * c["intermediate_size"],
        "head": 2 * logits * c["hidden_size"] * c["vocab_size"],
        "sampling": logits * c["vocab_size"],
    }


# Prompts of 16 tokens stand before what is generated. The first token of an answer belongs to its prompt, and the
# requests begin together.
@pytest.mark.parametrize("name, positions, logits", [
    (f"pp{PROMPT}", list(range(PROMPT)), 1),
    (f"tg{GENERATED}@{BATCH}", list(range(16, 16 + GENERATED - 1)) * BATCH, BATCH * (GENERATED - 1)),
])  # fmt: skip
def test_operations_are_those_of_the_configuration(results, name, positions, logits):
    profile = results[name]
    found = of(profile)
    for operator, count in operations(positions, logits).items():
        assert found[operator]["operations"] * profile["steps"] == pytest.approx(count), operator


def test_times_add_up_and_every_figure_follows(results):
    for profile in results.values():
        assert profile["steps"] >= 1
        assert profile["peaks"]["memory_gb_s"] > 0 and profile["peaks"]["cache_gb_s"] > 0
        step = profile["step"]
        assert sum(entry["ms"] for entry in profile["operators"]) == pytest.approx(step["ms"])
        assert sum(entry["share"] for entry in profile["operators"]) == pytest.approx(1)
        for entry in profile["operators"]:
            assert entry["gb_s"] == pytest.approx(entry["bytes"] / entry["ms"] / 1e6)
            if entry["name"] != "outside":
                assert entry["roofline_share"] > 0 and entry["bound"] in ("memory", "cache", "compute")


def test_text_has_a_line_for_each_operator():
    done = run("bench", TINY, "-p", 32, "-n", 0, "-r", 1, "--threads", 2, "--profile")
    assert done.returncode == 0, done.stderr
    for word in ("peaks:", "norm + quantise", "gate/up", "roofline", "step"):
        assert word in done.stdout


def test_without_it_there_is_no_profile():
    done = run("bench", TINY, "-p", 32, "-n", 0, "-r", 1, "--threads", 2, "--json")
    assert done.returncode == 0, done.stderr
    assert "profile" not in json.loads(done.stdout)["results"][0]

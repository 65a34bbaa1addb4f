"""`quire simulate`: traces and layer files as a user writes them."""
import json

import pytest
from test_program import assert_one_clear_line, run
from tiny import TINY

LAYERS = {
    "max_model_len": 8192,
    "layers": [
        {"count": 2, "kind": "sliding_window", "window": 128, "num_kv_heads": 2, "head_size": 64},
        {"count": 2, "num_kv_heads": 2, "head_size": 64},
    ],
}


@pytest.fixture
def files(tmp_path):
    """Writes a layer file and a trace; returns their paths."""

    def write(lines, layers=LAYERS):
        (tmp_path / "layers.json").write_text(json.dumps(layers))
        (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path / "layers.json", tmp_path / "trace.jsonl"

    return write


def chat(turns):
    """One conversation: each turn's prompt holds all before it, and 100 new tokens."""
    said = []
    for turn in range(turns):
        said.append({"segment": f"question {turn}", "tokens": 100})
        answer = {"segment": f"answer {turn}", "tokens": 60}
        yield {"arrival": 10 * turn, "prompt": list(said), "output": [answer]}
        said.append(answer)


def simulated(*arguments):
    result = run("simulate", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_chat_finds_its_earlier_turns(files):
    (report,) = simulated(*files(chat(5)), "--kv-cache-memory-bytes", 50_000_000)
    assert report["requests"] == 5
    assert report["prompt_tokens"] == 100 + 260 + 420 + 580 + 740
    # Whole blocks of 32 of all but the last answered token.
    assert report["cached_tokens"] == sum((160 * turn - 1) // 32 * 32 for turn in range(1, 5))
    assert report["output_tokens"] == 300
    assert report["preemptions"] == 0
    (off,) = simulated(*files(chat(5)), "--kv-cache-memory-bytes", 50_000_000, "--no-enable-prefix-caching")
    assert off["cached_tokens"] == 0


def test_sizes_side_by_side_with_and_without_groups(files):
    layers, trace = files([{"arrival": 0, "prompt": 4000, "output": 400}] * 20)
    sweep = ("--sweep", 30_000_000, 90_000_000, "--compare-hybrid", "--prefill-speed", 100_000)
    reports = simulated(layers, trace, *sweep)
    assert [r["hybrid"] for r in reports] == [True, False, True, False]
    assert reports[0]["kv_cache_bytes"] < reports[2]["kv_cache_bytes"] <= 90_000_000
    for on, off in (reports[:2], reports[2:]):
        assert on["requests_in_a_step"]["max"] > off["requests_in_a_step"]["max"]
    table = run("simulate", layers, trace, *sweep).stdout
    assert "from the prefix cache" in table and "first token, p99" in table


def test_a_model_without_its_weights(files):
    _, trace = files([{"arrival": 0, "prompt": [1, 2, 3], "output": [4, 5]}])
    (report,) = simulated(TINY, trace, "--kv-cache-memory-bytes", 10_000_000)
    assert report["output_tokens"] == 2 and report["steps"] == 2


def test_equal_runs_are_equal_and_prove_the_cache(files):
    paths = files(line for turn in zip(chat(8), chat(8)) for line in turn)
    arguments = (*paths, "--kv-cache-memory-bytes", 5_000_000, "--max-model-len", 2048, "--check-integrity")
    for retention in ("every-boundary", "turn-ends"):
        assert simulated(*arguments, "--retention", retention) == simulated(*arguments, "--retention", retention)


def test_errors_are_one_line(files, tmp_path):
    layers, trace = files([{"arrival": 0, "prompt": 5, "output": 1}, {"arrival": 0, "prompt": "x", "output": 1}])
    assert_one_clear_line(run("simulate", layers, trace), "line 2", '"prompt"')
    assert_one_clear_line(run("simulate", layers, tmp_path / "none.jsonl"), "none.jsonl")
    assert_one_clear_line(run("simulate", layers), "--trace")
    assert_one_clear_line(run("simulate", tmp_path / "none.json", trace), "none.json")
    assert_one_clear_line(run("simulate", layers, trace, "--sweep", 0), "--sweep")
    assert_one_clear_line(run("simulate", layers, trace, "--sweep", 1000), "kv_cache_memory_bytes")
    for flag in ("--prefill-speed", "--decode-speed"):
        for value in ("0", "-1", "nan", "-nan", "inf", "1e10", "1e999", "fast", "1 ", ""):
            assert_one_clear_line(run("simulate", layers, trace, flag, value), flag)
    assert_one_clear_line(run("simulate", layers, trace, "--kv-cache-memory-bytes", 1 << 60), "num_blocks")
    (tmp_path / "bad.json").write_text('{"max_model_len": 10, "layers": [{"kind": "odd", "head_size": 8}]}')
    assert_one_clear_line(run("simulate", tmp_path / "bad.json", trace), "layers[0]", "odd")


def test_what_cannot_run_is_counted(files):
    lines = [{"arrival": 0, "prompt": 1 << 40, "output": 1}, {"arrival": 0, "prompt": 10, "output": 1}]
    (report,) = simulated(*files(lines), "--kv-cache-memory-bytes", 50_000_000)
    assert report["refused"] == 1 and report["requests"] == 2
    assert "request 0" in report["first_refusal"]

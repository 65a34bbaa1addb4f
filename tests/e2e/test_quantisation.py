"""Online quantisation as a user meets it: what inspect says, what servers answer, and what is refused."""
import re

import pytest
from test_program import assert_one_clear_line, run
from tiny import FLAGS, ROOT, TINY

from quire_server import QuireServer

QUANTISED = ROOT / "tests" / "golden" / "models" / "gguf" / "random_llama_k.gguf"
METHODS = {
    "none": (),
    "int8": ("--quantization", "int8"),
    "int4": ("--quantization", "int4"),
    "head": ("--lm-head-quantization", "int8"),
    "layers": ("--quantization", "int8", "--lm-head-quantization", "none"),
}


def answer(server):
    body = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    reply = server.post("/v1/completions", body)
    return reply["system_fingerprint"], reply["choices"][0]["logprobs"]["token_logprobs"]


def answer_of(*flags):
    with QuireServer(TINY, *FLAGS, *flags) as server:
        return answer(server)


def test_every_method_is_served_and_has_a_fingerprint_of_its_own():
    answers = {name: answer_of(*flags) for name, flags in METHODS.items()}
    assert len({fingerprint for fingerprint, _ in answers.values()}) == len(METHODS)
    assert len({tuple(logprobs) for _, logprobs in answers.values()}) == len(METHODS)
    for name, flags in METHODS.items():
        assert answer_of(*flags, "--threads", 1) == answers[name]


def weights_of(*flags):
    """What inspect says of the weights: MiB in the file and in memory, the method, and the profile."""
    result = run("inspect", TINY, *flags, "--kv-cache-memory-bytes", 1 << 20)
    assert result.returncode == 0, result.stderr
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in result.stdout.splitlines() if re.match(r"\w+\s{2,}", line))
    file, memory = re.fullmatch(r"([\d.]+) MiB in the file, ([\d.]+) MiB in memory", lines["weights"]).groups()
    return float(file), float(memory), lines.get("quantization", ""), lines["profile"]


def test_inspect_names_method_and_memory():
    file, plain, *rest = weights_of()
    assert rest == ["", "bf16"]
    expected = {
        "int8": ("int8", "q8"),
        "int4": ("int4", "q8"),
        "layers": ("int8, LM head none", "q8"),
        "head": ("LM head int8", "bf16"),
    }
    sizes = {}
    for name, says in expected.items():
        size, sizes[name], *rest = weights_of(*METHODS[name])
        assert size == file and tuple(rest) == says, name
    assert sizes["int4"] <= sizes["int8"] < plain
    assert weights_of("--dtype", "float32")[1] > 1.5 * plain
    result = run("inspect", TINY, *METHODS["int8"], "--kv-cache-memory-bytes", 1 << 20)
    assert "notice         7 matrices stay as they are" in result.stdout  # rows of 80


@pytest.mark.parametrize("command", ["serve", "inspect", "bench"])
def test_what_is_quantised_already_is_refused(command):
    words = ("finds nothing to quantise", "tensor blk.0.attn_v.weight is [128, 256] Q6_K in the file", "without it")
    assert_one_clear_line(run(command, QUANTISED, "--quantization", "int8"), "--quantization", *words)
    assert_one_clear_line(run(command, QUANTISED, "--lm_head_quantization", "int8"), "--lm-head-quantization", "Q6_K")


def test_q8_of_floats_says_what_would_do():
    assert_one_clear_line(run("bench", TINY, "--dtype", "q8"), "--dtype", "--quantization int8 or int4")

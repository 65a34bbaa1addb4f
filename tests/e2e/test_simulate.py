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
    assert_one_clear_line(run("simulate", layers, trace, "--frobnicate", 1), "--frobnicate")
    (tmp_path / "bad.json").write_text('{"max_model_len": 10, "layers": [{"kind": "odd", "head_size": 8}]}')
    assert_one_clear_line(run("simulate", tmp_path / "bad.json", trace), "layers[0]", "odd")


# flag, its ends, values beyond them, and what else the ends need
ENDS = {
    "--max-model-len": (("1", "16777216"), ("0", "-2", "16777217"), ()),
    "--block-size": (("16", "65536"), ("0", "15", "17", "-16", "65537"), ("--kv-cache-memory-bytes", 4_000_000_000)),
    "--max-num-seqs": (("1", "4096"), ("0", "-1", "4097"), ("--max-num-batched-tokens", 4096)),
    "--max-num-batched-tokens": (("1", "65536"), ("0", "-1", "65537"), ("--max-num-seqs", 1)),
    "--max-waiting-requests": (("1", "16777216"), ("0", "-1", "16777217"), ()),
    "--step-time-ms": (("1", "60000"), ("0", "-1", "60001"), ()),
    "--threads": (("0", "1024"), ("-1", "1025"), ()),
    "--kv-cache-memory-bytes": ((), ("0", "-1", "1", "1000", f"{1 << 60}", f"{(1 << 63) - 1}", f"{1 << 63}"), ()),
    "--sweep": ((), ("0", "-1", "1", "1000", f"{1 << 60}", f"{(1 << 63) - 1}", f"{1 << 63}"), ()),
    "--prefill-speed": (("0.1", "1e9"), ("0", "-1", "0.099", "1e10", "nan", "-nan", "inf", "1e999", "1 ", ""), ()),
    "--decode-speed": (("0.1", "1e9"), ("0", "-1", "0.099", "1e10", "nan", "-nan", "inf", "1e999", "1 ", ""), ()),
}


@pytest.mark.parametrize("flag", ENDS)
def test_numbers_at_both_ends(files, flag):
    layers, trace = files([{"arrival": 0, "prompt": 40, "output": 3}])
    ends, beyond, needed = ENDS[flag]
    size = () if flag in ("--kv-cache-memory-bytes", "--sweep") else ("--kv-cache-memory-bytes", 50_000_000)
    for value in ends:
        (report,) = simulated(layers, trace, *(needed or size), flag, value)
        assert report["requests"] == 1
    for value in (*beyond, "many", "9" * 400):
        result = run("simulate", layers, trace, *size, flag, value)
        assert_one_clear_line(result, flag, value)
        for internal in ("num_blocks", "token_ns", "step_ns", "kv_cache", "max_", "block_size"):
            assert internal not in result.stderr


def test_a_cache_of_two_terabytes(files):
    layers, trace = files([{"arrival": 0, "prompt": 40, "output": 3}], {
        "max_model_len": 8192, "layers": [{"count": 2, "num_kv_heads": 2, "head_size": 64}]})  # fmt: skip
    size = 2_000_000_000_000
    block = 2 * 2 * 64 * 2 * 2 * 32  # layers, heads, elements, bytes, keys and values, tokens
    most = (1 << 24) * block
    for flag in ("--kv-cache-memory-bytes", "--sweep"):
        assert_one_clear_line(run("simulate", layers, trace, flag, size), f"{flag} {size}", str(most), "--block-size")
    (report,) = simulated(layers, trace, "--kv-cache-memory-bytes", size, "--block-size", 256)
    assert report["kv_cache_bytes"] > size - 8 * block


def test_flags_that_contradict_each_other(files):
    layers, trace = files([{"arrival": 0, "prompt": 40, "output": 3}])
    flags = ("--max-num-seqs", 64, "--max-num-batched-tokens", 16)
    line = "--max-num-batched-tokens 16 must be at least --max-num-seqs 64"
    assert_one_clear_line(run("simulate", layers, trace, *flags), line)
    flags = ("--max-model-len", 8000, "--sweep", 2_000_000)
    assert_one_clear_line(run("simulate", layers, trace, *flags), "--sweep", "2000000", "--max-model-len 8000")
    assert_one_clear_line(run("simulate", layers, trace, "--kv-cache-layout", "BNL"), "--kv-cache-layout", "BNL")


def test_a_time_that_no_clock_holds(files):
    layers, trace = files([{"arrival": 3e9, "prompt": 8000, "output": 100}] * 2500)
    flags = ("--prefill-speed", 0.1, "--decode-speed", 0.1, "--kv-cache-memory-bytes", 50_000_000)
    assert_one_clear_line(run("simulate", layers, trace, *flags), "--prefill-speed 0.1, --decode-speed 0.1", "years")


def test_layouts_that_no_kernel_runs_are_planned_and_told(files):
    paths = files([{"arrival": 0, "prompt": 40, "output": 3}])
    flags = ("--kv-cache-memory-bytes", 50_000_000, "--kv-cache-layout")
    (report,) = simulated(*paths, *flags, "BLNHC")
    assert "no kernel of quire runs this" in report["notice"] and "use BLHNC" in report["notice"]
    assert report["notice"] in run("simulate", *paths, *flags, "BLNHC").stdout
    (report,) = simulated(*paths, *flags, "BLHNC")
    assert report["notice"] == ""
    (report,) = simulated(*paths, *flags, "BLNHC", "--max-model-len", 9000)
    assert "8192 tokens instead of 9000" in report["notice"] and "no kernel" in report["notice"]


def test_what_cannot_run_is_counted(files):
    lines = [{"arrival": 0, "prompt": 1 << 40, "output": 1}, {"arrival": 0, "prompt": 10, "output": 1}]
    (report,) = simulated(*files(lines), "--kv-cache-memory-bytes", 50_000_000)
    assert report["refused"] == 1 and report["requests"] == 2
    assert "request 0" in report["first_refusal"]

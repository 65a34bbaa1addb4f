"""The program as a user meets it: what it says, and how it ends, when it cannot start; models without a tokenizer."""
import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from tiny import FLAGS, TINY, wait_until_idle

from quire_server import HttpError, QuireServer, quire_binary


LLAMA = TINY.parent / "llama_tied"


def run(*arguments, seconds=60):
    command = [str(quire_binary()), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)


def assert_one_clear_line(result, *words):
    assert result.returncode == 2, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0]


def test_a_model_that_is_not_there():
    assert_one_clear_line(run("serve", "no/such/model"), "no/such/model")


def test_an_unknown_flag():
    assert_one_clear_line(run("serve", TINY, "--frobnicate"), "--frobnicate")


def test_no_command_and_a_wrong_one():
    for arguments in (("foo",), ("foo", "serve"), ("--frobnicate",), ("Serve", TINY)):
        assert_one_clear_line(run(*arguments), arguments[0])
    assert_one_clear_line(run(), "serve, run, inspect, bench, simulate or verify")


# flag, values that it refuses beyond those that no number may have
NUMBERS = {
    "--port": ("-1", "65536"),
    "--max-model-len": ("0", "-2"),
    "--kv-cache-memory-bytes": ("0", "-1"),
    "--block-size": ("0", "-16", "17", "8"),
    "--max-num-seqs": ("0", "-1", "4097"),
    "--max-num-batched-tokens": ("0", "-1", "65537"),
    "--max-waiting-requests": ("0", "-1"),
    "--step-time-ms": ("0", "-1", "60001"),
    "--threads": ("-1", "1025"),
    "--drain-timeout": ("-1", "86401"),
}


@pytest.mark.parametrize("flag", NUMBERS)
def test_a_number_out_of_range(flag):
    for value in (*NUMBERS[flag], "many", "1.5", "1e3", "0x10", "010", "7 ", "9" * 25, "9" * 400):
        result = run("serve", TINY, flag, value)
        assert_one_clear_line(result)
        line = result.stderr.replace("_", "-")
        assert flag.strip("-") in line, (value, line)
        assert len(line) - line.count(value) * len(value) < 200, line


@pytest.mark.parametrize("flags, word", [
    (("--enable-prefix-caching", "--no-enable-prefix-caching"), "prefix-caching"),
    (("--no_enable_prefix_caching", "--enable_prefix_caching"), "prefix-caching"),
    (("--max-num-seqs", 8, "--max-num-seqs", 9), "--max-num-seqs"),
    (("--model", "other"), "--model"),
    (("--generation-config", "maybe"), "--generation-config"),
    (("--dtype", "int3"), "--dtype"),
    (("--offload-experts", "maybe"), "--offload-experts"),
    (("--offload-experts", "always"), "--offload-experts: the model has no experts"),
    (("--quantization", "int3"), "--quantization"),
    (("--lm-head-quantization", "int4"), "--lm-head-quantization"),
    (("--hf-overrides", "[1]"), "--hf-overrides"),
    (("--hf-overrides", '{"rope_parameters": {"spiral": 1}}'), "rope_parameters/spiral"),
    (("--hf-config-path", "no/such/folder"), "no/such/folder"),
    (("--max-num-seqs", 64, "--max-num-batched-tokens", 16), "--max-num-batched-tokens 16 must be at least --max-num-seqs 64"),
], ids=str)  # fmt: skip
def test_flags_that_contradict_each_other_or_their_values(flags, word):
    assert_one_clear_line(run("serve", TINY, *flags), word)


@pytest.mark.parametrize("value, word", [
    ("0,0", "twice"), ("4095", "neither a CPU"), ("1023", "CPU 1023 is not one"), ("0-", "0-3,8"), ("x", "0-3,8"), (",", "0-3,8"),
], ids=str)  # fmt: skip
def test_cpus_that_there_are_not(value, word):
    assert_one_clear_line(run("bench", TINY, "-p", 16, "-n", 0, "--cpu-affinity", value), "--cpu-affinity", word)


def test_threads_run_where_they_are_pinned():
    cpu = min(os.sched_getaffinity(0))
    assert_one_clear_line(run("bench", TINY, "-p", 16, "-n", 0, "--cpu-affinity", cpu, "--threads", 2), "--cpu-affinity", "2 threads")
    with QuireServer(TINY, *FLAGS, "--cpu-affinity", cpu) as server:
        server.post("/v1/completions", {"prompt": [3, 4], "max_tokens": 2})
        pinned = [f"{cpu}" == allowed for allowed in allowed_lists(server)]
    # The engine's thread, and no other where there is one CPU to run on.
    assert any(pinned)
    if len(os.sched_getaffinity(0)) > 1:
        assert not all(pinned)


def allowed_lists(server):
    """The CPUs that each thread of the server may run on, as Linux writes them."""
    for status in Path(f"/proc/{server.process.pid}/task").glob("*/status"):
        yield re.search(r"^Cpus_allowed_list:\t(.*)$", status.read_text(), re.M)[1]


@pytest.mark.parametrize("flags, word", [
    (("-p", 0, "-n", 0), "nothing to measure"),
    (("-n", 1), "-n"),
    (("-p", -1), "-p"),
    (("--batch", 0), "--batch"),
    (("-r", 0), "-r"),
], ids=str)  # fmt: skip
def test_a_bench_of_nothing(flags, word):
    assert_one_clear_line(run("bench", TINY, *flags), word)


def changed_model(folder, file="config.json", text=None, **changes):
    """A copy of the tiny model in which keys of a file are others, or the whole text is."""
    shutil.copytree(TINY, folder, dirs_exist_ok=True)
    values = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**values, **changes}) if text is None else text)
    return folder


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["", "{", '{"a": 1e999}', "[1]", '{"a": 01}', "\x00"], ids=repr)
def test_a_configuration_that_is_no_json(tmp_path, file, text):
    result = run("serve", changed_model(tmp_path, file, text))
    assert_one_clear_line(result, file)
    assert "exception" not in result.stderr


def test_a_configuration_that_leaves_layers_out(tmp_path):
    layers = json.loads((TINY / "config.json").read_text())["num_hidden_layers"]
    types = json.loads((TINY / "config.json").read_text())["layer_types"]
    model = changed_model(tmp_path, num_hidden_layers=layers - 1, layer_types=types[:-1])
    assert_one_clear_line(run("inspect", model), f"model.layers.{layers - 1}.")
    with pytest.raises(RuntimeError, match=rf"code 2:[^$]*model.layers.{layers - 1}\."):
        with QuireServer(model, *FLAGS):
            pass


@pytest.mark.parametrize("key, value", [
    ("temperature", "hot"), ("top_p", 0), ("top_k", 1.5), ("min_p", 2), ("repetition_penalty", 0), ("max_new_tokens", 0),
])  # fmt: skip
def test_a_wrong_sampling_default_is_named_or_passed_over(tmp_path, key, value):
    model = changed_model(tmp_path, "generation_config.json", **{key: value})
    assert_one_clear_line(run("serve", model), "generation_config.json", key, "--generation-config vllm")
    with QuireServer(model, *FLAGS, "--generation-config", "vllm") as server:
        assert "sampling defaults: vLLM's own" in server.log()


def test_the_models_sampling_defaults_are_those_of_requests(tmp_path):
    model = changed_model(tmp_path, "generation_config.json", temperature=0.0, top_k=5, max_new_tokens=3)
    chat = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
    prompt = {"prompt": [5, 6, 7], "max_tokens": 8, "seed": 1, "ignore_eos": True}

    def text(server, **fields):
        return server.post("/v1/completions", {**prompt, **fields})["choices"][0]["text"]

    with QuireServer(model, *FLAGS) as server:
        assert "sampling defaults of the model: temperature 0, top_k 5, max_tokens 3" in server.log()
        assert server.post("/v1/chat/completions", chat)["usage"]["completion_tokens"] == 3
        assert server.post("/v1/chat/completions", {**chat, "max_tokens": 4})["usage"]["completion_tokens"] == 4
        greedy = text(server)
        assert greedy == text(server, temperature=0, top_k=0)
        sampled = text(server, temperature=1, top_k=0)
    with QuireServer(model, *FLAGS, "--generation-config", "vllm") as server:
        assert text(server, temperature=0) == greedy
        assert text(server) == sampled != greedy


def test_a_context_that_does_not_fit():
    for command in ("serve", "inspect"):
        for size in (1, 4096):
            assert_one_clear_line(run(command, TINY, "--kv-cache-memory-bytes", size),
                                  "--kv-cache-memory-bytes", f" {size} bytes", "not one token", "--block-size")
    flags = ("--kv-cache-memory-bytes", 100_000, "--max-model-len", 512)
    assert_one_clear_line(run("serve", TINY, *flags), "--kv-cache-memory-bytes", "longest that would fit has 160 tokens")


def test_inspect_refuses_what_serve_would():
    for flags, words in (
        (("--cpu-affinity", "9999"), ("--cpu-affinity", "9999")),
        (("--cpu-affinity", "0-"), ("--cpu-affinity",)),
        (("--hf-config-path", ""), ("--hf-config-path", "empty")),
        (("--hf-overrides", '{"rope_parameters": {"rope_theta": 1e20}}'), ("rope theta",)),
        (("--hf-overrides", '{"rope_parameters": {"rope_type": "default", "factor": 4.0}}'),
         ("rope_parameters/factor", "rope_type")),
    ):
        for command in ("serve", "inspect"):
            assert_one_clear_line(run(command, LLAMA, *flags), *words)


def test_the_overrides_of_the_readme():
    shown = run("inspect", LLAMA, "--hf-overrides", '{"rope_parameters": {"rope_type": "linear", "factor": 4.0}}')
    assert shown.returncode == 0, shown.stderr


def test_a_cache_larger_than_the_memory():
    for size in (1 << 45, 2**63 - 1):
        refused = run("serve", TINY, "--kv-cache-memory-bytes", size)
        assert_one_clear_line(refused, f"--kv-cache-memory-bytes {size} is more than", "bytes of memory that are free")
        shown = run("inspect", TINY, "--kv-cache-memory-bytes", size)
        assert shown.returncode == 0
        (notice,) = [line for line in shown.stdout.splitlines() if line.startswith("notice")]
        words = refused.stderr.strip().removeprefix("quire: ")
        free = re.compile(r"the \d+ bytes")  # others take and give memory in between
        assert free.sub("", notice.partition("here: ")[2]) == free.sub("", words)
    fits = run("inspect", TINY, "--kv-cache-memory-bytes", 1 << 20)
    assert "would refuse" not in fits.stdout


def test_a_chat_template_that_is_no_file_to_read(tmp_path):
    assert_one_clear_line(run("serve", TINY, "--chat-template", tmp_path), str(tmp_path), "not a regular file")
    assert_one_clear_line(run("serve", TINY, "--chat-template", "/dev/zero"), "/dev/zero", "not a regular file")
    assert_one_clear_line(run("serve", TINY, "--chat-template", tmp_path / "none"), "none", "no file")
    assert_one_clear_line(run("serve", TINY, "--chat-template", "x" * 5000), "--chat-template")
    for size, word in ((0, "empty"), ((1 << 20) + 1, "1048576 bytes")):
        (tmp_path / "t.jinja").write_text("a" * size)
        assert_one_clear_line(run("serve", TINY, "--chat-template", tmp_path / "t.jinja"), "t.jinja", word)


def test_an_architecture_that_is_not_known(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["OddModel"], "model_type": "odd"}')
    shutil.copy(TINY / "model.safetensors", tmp_path)
    assert_one_clear_line(run("serve", tmp_path), "OddModel")


def test_a_configuration_from_elsewhere_and_overrides(tmp_path):
    config = json.loads((TINY / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 320}))
    memory = ("--kv-cache-memory-bytes", 1 << 24)
    for flags, length in (
        (("--hf-config-path", tmp_path), 320),
        (("--hf_config_path", tmp_path / "config.json", "--hf-overrides", '{"max_position_embeddings": 288}'), 288),
    ):
        shown = run("inspect", TINY, *memory, *flags)
        assert shown.returncode == 0, shown.stderr
        assert f"{length} tokens" in shown.stdout
        assert f"{length} tokens" not in run("inspect", TINY, *memory).stdout


def test_inspect_shows_the_whole_plan():
    result = run("inspect", TINY, "--kv-cache-memory-bytes", 1 << 20)
    assert result.returncode == 0, result.stderr
    lines = [line.strip() for line in result.stdout.splitlines()]
    starts = {line.split("  ")[0] for line in lines}
    assert {"KV cache", "groups", "units", "prefix cache", "admission", "capacity"} <= starts
    groups = [line for line in lines if line.startswith("group ") and "blocks a request" in line]
    assert any("full" in line for line in groups) and any("sliding window of 16 tokens" in line for line in groups)
    # One head of 32 rows: a page is all of a layer's block.
    assert lines.count("bytes to the next layer 2048, block 2048, head 2048, row 64") == len(groups)
    assert sorted(line.split(":")[0] for line in lines if line.startswith("layers ")) == [f"layers {i}" for i in range(7)]
    assert "prefixes of at least 32 tokens, in steps of 32" in result.stdout
    attention = [line for line in lines if "over cache group" in line]
    assert len(attention) == len(groups) and all("pages of 32 tokens, 1 a block" in line for line in attention)
    bound = sum(int(line.split("at most ")[1].split()[0]) for line in groups)
    assert f"holds at most {bound} of 511 blocks" in result.stdout
    # Blocks of 48 tokens are three pages of 16.
    split = run("inspect", TINY, "--kv-cache-memory-bytes", 1 << 20, "--block-size", 48)
    assert split.stdout.count("pages of 16 tokens, 3 a block, blocks 3 pages apart") == len(groups)
    off = run("inspect", TINY, "--kv-cache-memory-bytes", 1 << 20, "--no-enable-prefix-caching")
    assert "prefix cache   off" in off.stdout


def test_the_log_says_the_shortest_prefix_that_is_reused():
    for flags, words in (((), "at least 32 tokens are reused"), (("--no-enable-prefix-caching",), "prefix cache: off")):
        with QuireServer(TINY, *FLAGS, *flags) as server:
            assert words in server.log()


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert_one_clear_line(run("serve", TINY, "--port", port), str(port))


def test_a_model_without_a_tokenizer_serves_ids(tmp_path):
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(TINY / name, tmp_path)
    flags = [flag for flag in FLAGS if flag != "--chat-template" and "{{" not in str(flag)]
    with QuireServer(tmp_path, *flags) as server:
        choice = server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4, "logprobs": 1})["choices"][0]
        assert len(choice["token_ids"]) == 4
        assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
        for path, body in (
            ("/v1/completions", {"prompt": "text"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ):
            with pytest.raises(HttpError) as refusal:
                server.post(path, body)
            assert refusal.value.status == 400
            assert "tokenizer" in refusal.value.body["error"]["message"]
        wait_until_idle(server)


def test_more_answers_than_the_queue_holds_are_a_bad_request():
    with QuireServer(TINY, *FLAGS, "--max-waiting-requests", 2) as server:
        assert len(server.post("/v1/completions", {"prompt": [5], "max_tokens": 1, "n": 2})["choices"]) == 2
        with pytest.raises(HttpError) as refusal:
            server.post("/v1/completions", {"prompt": [5], "max_tokens": 1, "n": 3})
        assert refusal.value.status == 400
        assert refusal.value.body["error"]["param"] == "n"


def test_a_template_in_a_file_is_used(tmp_path):
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    flags = ("--kv-cache-memory-bytes", 16 << 20, "--chat-template", tmp_path / "t.jinja")
    with QuireServer(TINY, *flags) as server:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        chat = server.post("/v1/chat/completions", body)
        plain = server.post("/tokenize", {"prompt": "hi", "add_special_tokens": False})
        assert chat["usage"]["prompt_tokens"] == plain["count"]


def test_the_page_and_its_parts_are_served():
    with QuireServer(TINY, *FLAGS) as server:
        status, headers, page = server.request("GET", "/")
        assert status == 200 and headers["Content-Type"].startswith("text/html")
        for part in (b"/app.js", b"/style.css"):
            assert part in page
            assert server.request("GET", part.decode())[0] == 200

"""The program as a user meets it: what it says, and how it ends, when it cannot start; models without a tokenizer."""
import shutil
import socket
import subprocess

import pytest
from tiny import FLAGS, TINY, wait_until_idle

from quire_server import HttpError, QuireServer, quire_binary


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


def test_a_context_that_does_not_fit():
    assert_one_clear_line(run("serve", TINY, "--kv-cache-memory-bytes", 4096), "KV cache")


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

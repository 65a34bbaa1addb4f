"""The log of a server: one line a request, as text or as JSON."""
import json
from pathlib import Path

from tiny import FLAGS, TINY, wait_until_idle

from quire_server import QuireServer

BODY = {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}


def ask_and_read(*flags):
    """The log of a server that answered two requests, and refused one."""
    with QuireServer(TINY, *FLAGS, *flags) as server:
        for i, body in enumerate((BODY, {**BODY, "stream": True}, {**BODY, "max_tokens": 0})):
            status, headers, _ = server.request("POST", "/v1/completions", body, {"X-Request-Id": f"id-{i}"})
            assert status == (400 if i == 2 else 200) and headers["X-Request-Id"] == f"id-{i}"
        wait_until_idle(server)
        return Path(server._log.name).read_text().splitlines()


def test_every_line_is_json():
    lines = [json.loads(line) for line in ask_and_read("--log-format", "json")]
    assert {"time", "level", "message"} <= set.intersection(*map(set, lines))
    assert any("ready in" in line["message"] for line in lines)
    first, second, refused = [line for line in lines if line["message"] == "request"]
    for i, line in enumerate((first, second)):
        assert line["id"] == f"id-{i}" and line["path"] == "/v1/completions" and line["status"] == 200
        assert line["prompt_tokens"] == 3 and line["completion_tokens"] == 4 and line["finish"] == "length"
        assert 0 < line["ttft_ms"] <= line["total_ms"]
        assert line["client"].startswith("127.0.0.1:") and line["stream"] is (i == 1)
    assert refused["id"] == "id-2" and refused["status"] == 400 and "ttft_ms" not in refused


def test_text_says_the_same():
    lines = [line for line in ask_and_read() if " info request " in line]
    assert len(lines) == 3
    assert " id=id-0 " in lines[0] and " status=200 " in lines[0] and " completion_tokens=4 " in lines[0]
    assert " id=id-2 " in lines[2] and " status=400 " in lines[2]

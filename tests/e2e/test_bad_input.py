"""Whatever a client sends, the server answers with the right status, goes on, and gives every block back."""
import gzip
import json
import socket
import threading
import time

import openai
import pytest
from tiny import FLAGS, TINY, client, client_of, figures, server, wait_until_idle  # noqa: F401

from quire_server import QuireServer

IDS = [5, 6, 7]

# (fields beside a good prompt, the field that the error must name)
BAD_COMPLETIONS = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": "7"}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"max_tokens": 2**70}, "max_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"temperature": 10**400}, "temperature"),
    ({"stop_token_ids": [2**64]}, "stop_token_ids"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": -5}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"presence_penalty": 9}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": 10**6}, "n"),
    ({"logprobs": 1000}, "logprobs"),
    ({"prompt_logprobs": -2}, "prompt_logprobs"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"stop_token_ids": [10**9]}, "stop_token_ids"),
    ({"seed": "lucky"}, "seed"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {}}, "response_format"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"min_tokens": 100}, "min_tokens"),
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
]
BAD_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
]
BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"not json",
    b'{"prompt": "a",}',
    b'{"prompt": "a"} {"prompt": "b"}',
    b'{"prompt": "a", "prompt": "b"}',
    b'{"prompt": "\xff\xfe"}',
    b'{"prompt": "\xed\xa0\x80"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": ' + b"[" * 100_000,
    b'{"prompt": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    b"\x00" * 1000,
    b"\xef\xbb\xbf" * 3,
]


def error_of(server, path, body):
    status, _, text = server.request("POST", path, body, headers={"Content-Type": "application/json"})
    return status, json.loads(text)["error"]


@pytest.mark.parametrize("fields, param", BAD_COMPLETIONS, ids=lambda value: str(value)[:40])
def test_bad_fields_of_completions_are_named(server, fields, param):
    status, error = error_of(server, "/v1/completions", {"model": "m", "prompt": IDS, **fields})
    assert status == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("fields, param", BAD_CHATS, ids=lambda value: str(value)[:40])
def test_bad_fields_of_chats_are_named(server, fields, param):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    status, error = error_of(server, "/v1/chat/completions", body)
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/tokenize",
        "/detokenize",
    ],
)
def test_bad_bodies(server, path):
    for body in BAD_BODIES:
        status, error = error_of(server, path, body)
        assert status == 400, body[:60]
        assert error["message"]


def test_what_does_not_exist(server):
    assert error_of(server, "/v1/completions", {"model": "other", "prompt": IDS})[0] == 404
    assert error_of(server, "/v1/completions", {"model": "", "prompt": IDS})[0] == 404
    assert server.request("GET", "/v1/models/")[0] == 404
    assert server.request("GET", "/v1/nothing")[0] == 404
    assert server.request("GET", "/v1/completions")[0] == 405
    assert server.request("POST", "/v1/completions", b"{}", headers={"Content-Type": "text/plain"})[0] == 415
    zipped = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert server.request("POST", "/v1/completions", gzip.compress(b"{}"), headers=zipped)[0] == 415


def test_an_expectation_is_met_or_refused(server):
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 15\r\nExpect: "
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(head + b"100-continue\r\n\r\n")
        assert raw.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(b'{"prompt": "a"}')
        assert raw.recv(4096).startswith(b"HTTP/1.1 200 ")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(head + b"a-miracle\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 417 ")


def test_a_prompt_that_is_too_long_names_both_numbers(server, client):
    length = client.models.list().data[0].max_model_len
    status, error = error_of(server, "/v1/completions", {"prompt": [9] * (length + 77)})
    assert status == 400
    assert str(length) in error["message"] and str(length + 77) in error["message"]


def test_unknown_fields_are_ignored_and_listed(server):
    status, headers, _ = server.request("POST", "/v1/completions", {"prompt": IDS, "max_tokens": 1, "frobnicate": 1})
    assert status == 200
    assert headers["X-Quire-Ignored-Fields"] == "frobnicate"


def test_an_oversized_body_is_refused(server):
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 999999999\r\n\r\n{")
        assert raw.recv(65536).startswith(b"HTTP/1.1 413 ")
    status, error = error_of(server, "/v1/completions", b'{"prompt": "' + b"a" * (20 << 20) + b'"}')
    assert status == 413


@pytest.mark.parametrize("request_bytes", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
    b"HELLO\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET /\xff\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
], ids=lambda value: repr(value[:20]))  # fmt: skip
def test_what_is_no_http_is_answered_and_closed(server, request_bytes):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(request_bytes)
        reply = b""
        while piece := raw.recv(65536):
            reply += piece
            if b"HTTP/1.1 404" in reply:  # a sound request for what is not there keeps the connection
                break
    assert reply.split(b" ")[1][:1] == b"4"
    assert server.request("GET", "/health")[0] == 200


def test_slow_clients_do_not_hold_up_others(server, client):
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    for index, raw in enumerate(slow):
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" if index % 2 else b"P")
    began = time.monotonic()
    client.completions.create(model="m", prompt=IDS, max_tokens=4)
    assert time.monotonic() - began < 5
    for raw in slow:  # the header's time is over some day
        raw.settimeout(30)
        while raw.recv(4096):
            pass
        raw.close()


def body_of(fields):
    text = json.dumps(fields).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_gives_every_block_back(server, client, stream):
    length = client.models.list().data[0].max_model_len
    before = sum(v for k, v in server.metrics().items() if 'finished_reason="abort"' in k)
    raws = []
    for index in range(6):
        raw = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        raw.sendall(body_of({"prompt": [9 + index] * 40, "max_tokens": length - 40, "ignore_eos": True, "n": 2, "stream": stream}))
        raws.append(raw)
    for raw in raws:
        if stream:
            assert b"200 OK" in raw.recv(4096)
    if not stream:
        end = time.monotonic() + 10
        while figures(server)["vllm:num_requests_running"] == 0 and time.monotonic() < end:
            time.sleep(0.005)
    for raw in raws:
        raw.close()
    wait_until_idle(server)
    after = sum(v for k, v in server.metrics().items() if 'finished_reason="abort"' in k)
    assert after > before


def test_a_full_queue_says_when_to_come_back():
    with QuireServer(TINY, *FLAGS, "--max-num-seqs", 1, "--max-waiting-requests", 2) as server:
        client = client_of(server)
        length = client.models.list().data[0].max_model_len
        streams = []
        refused = None
        for _ in range(8):
            try:
                streams.append(client.completions.create(model="m", prompt=IDS, max_tokens=length - 3, stream=True, extra_body={"ignore_eos": True}))
            except openai.RateLimitError as error:
                refused = error
        assert refused is not None
        assert int(refused.response.headers["retry-after"]) >= 1
        for stream in streams:
            stream.close()
        wait_until_idle(server)


def test_a_key_is_asked_for():
    with QuireServer(TINY, *FLAGS, "--api-key", "sesame") as server:
        with pytest.raises(openai.AuthenticationError):
            client_of(server).models.list()
        keyed = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sesame", max_retries=0)
        assert keyed.models.list().data[0].id == "m"
        assert server.request("GET", "/health")[0] == 200


def test_a_drain_finishes_what_runs_and_refuses_what_is_new():
    with QuireServer(TINY, *FLAGS, "--drain-timeout", 60) as server:
        client = client_of(server)
        length = client.models.list().data[0].max_model_len
        stream = client.completions.create(model="m", prompt=IDS, max_tokens=length - 3, stream=True, extra_body={"ignore_eos": True})
        first = next(iter(stream))
        code = []
        stopper = threading.Thread(target=lambda: code.append(server.stop(60)))
        stopper.start()
        time.sleep(0.05)
        try:
            status = server.request("POST", "/v1/completions", {"prompt": IDS})[0]
        except OSError:
            status = None  # it was quick: all is over
        assert status in (503, None)
        pieces = [first, *stream]
        assert pieces[-1].choices[0].finish_reason == "length"
        stopper.join()
        assert code == [0]

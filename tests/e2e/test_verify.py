"""`quire verify`: a saved answer is asked for again; what differs, or cannot be compared, is said in a line."""
import json

import pytest
from test_program import assert_one_clear_line, run
from tiny import FLAGS, TINY, wait_until_idle

from quire_server import QuireServer

MESSAGES = [{"role": "user", "content": "hi"}]
REQUESTS = {
    "/v1/completions": {"prompt": [3, 4, 5], "max_tokens": 12, "n": 2, "seed": 7, "logprobs": 3, "return_token_ids": True},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 12, "temperature": 0, "logprobs": True},
    "/v1/responses": {"input": "hi", "max_output_tokens": 12, "temperature": 0},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 12, "temperature": 0},
}


@pytest.fixture(scope="module")
def server():
    with QuireServer(TINY, *FLAGS) as running:
        yield running
        wait_until_idle(running)


def save(folder, request, response):
    paths = folder / "request.json", folder / "response.json"
    for path, value in zip(paths, (request, response), strict=True):
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    return paths


def verify(server, paths, *flags):
    return run("verify", *paths, "--base-url", server.url, *flags)


@pytest.mark.parametrize("endpoint", REQUESTS)
def test_an_answer_is_the_same_and_a_changed_one_is_not(server, endpoint, tmp_path):
    request = REQUESTS[endpoint]
    response = server.post(endpoint, request)
    for asked in (request, request | {"stream": True, "stream_options": {"include_usage": True}}):
        same = verify(server, save(tmp_path, asked, response))
        assert (same.returncode, same.stderr) == (0, ""), same.stdout
        assert response["system_fingerprint"] in same.stdout
    text = json.dumps(response)
    for key in ("text", "content"):
        if f'"{key}": "' in text:
            changed = text.replace(f'"{key}": "', f'"{key}": "!', 1)
    other = verify(server, save(tmp_path, request, changed))
    assert other.returncode == 1 and other.stdout.startswith("another answer: "), other.stdout
    assert "byte 0:" in other.stdout


def test_the_place_of_the_first_difference_is_told(server, tmp_path):
    request = REQUESTS["/v1/completions"]
    response = server.post("/v1/completions", request)

    def told(change):
        changed = json.loads(json.dumps(response))
        change(changed["choices"])
        result = verify(server, save(tmp_path, request, changed))
        assert result.returncode == 1 and result.stdout.count("\n") == 1
        return result.stdout

    def logprob(choices):
        choices[1]["logprobs"]["token_logprobs"][2] -= 1e-7

    assert told(logprob).startswith("another answer: choices/1/logprobs/token_logprobs/2: -")
    assert "choices/0/finish_reason" in told(lambda choices: choices[0].update(finish_reason="stop"))
    assert "choices has 2 entries instead of 1" in told(lambda choices: choices.pop())
    assert "choices/0/spin is missing" in told(lambda choices: choices[0].update(spin=1))
    assert "choices/1/stop_reason was not there" in told(lambda choices: choices[1].pop("stop_reason"))


# A template writes tools in the order of their members, and the model's own members are its answer.
def test_members_keep_their_order_and_deep_ones_count(server, tmp_path):
    tool = {"type": "function", "function": {"name": "z", "parameters": {"type": "object", "properties": {"b": {"const": 2}, "a": {"const": 1}}, "required": ["b", "a"], "additionalProperties": False}}}  # fmt: skip
    request = {"messages": MESSAGES, "max_tokens": 90, "temperature": 0, "tools": [tool], "tool_choice": "required"}
    response = server.post("/v1/chat/completions", request)
    assert verify(server, save(tmp_path, request, response)).returncode == 0
    call = response["choices"][0]["message"]["tool_calls"][0]
    call["id"] = call["id"][::-1]
    other = verify(server, save(tmp_path, request, response))
    assert other.returncode == 1 and "choices/0/message/tool_calls/0/id" in other.stdout


def test_a_seed_that_the_server_chose(server, tmp_path):
    request = {"prompt": [3, 4, 5], "max_tokens": 24, "temperature": 1.5, "ignore_eos": True}
    _, headers, reply = server.request("POST", "/v1/completions", request)
    paths = save(tmp_path, request, json.loads(reply))
    assert verify(server, paths, "--seed", headers["X-Quire-Seed"]).returncode == 0
    unknown = verify(server, paths)
    assert unknown.returncode == 1 and "X-Quire-Seed" in unknown.stdout


def test_another_model_is_told_by_its_fingerprint(server, tmp_path):
    request = REQUESTS["/v1/chat/completions"]
    with QuireServer(TINY, *FLAGS, "--dtype", "float32") as other:
        response = other.post("/v1/chat/completions", request)
    result = verify(server, save(tmp_path, request, response))
    assert result.returncode == 1 and response["system_fingerprint"] in result.stdout
    assert result.stdout.startswith("another model")


@pytest.mark.parametrize("request_text, response, words", [
    ("[]", {"object": "text_completion"}, ("request.json", "JSON object")),
    ("{", {"object": "text_completion"}, ("request.json",)),
    ("{}", "[]", ("response.json", "JSON object")),
    ("{}", "data: {}\n\n", ("response.json", "stream")),
    ("{}", "event: message_start\n", ("response.json", "stream")),
    ("{}", {"object": "model"}, ("response.json", "/v1/chat/completions")),
    ("{}", {"object": 3}, ("response.json",)),
    ("{}", {"object": "text_completion"}, ("HTTP 400", "prompt")),
    ("[" * 100_000, {"object": "text_completion"}, ("request.json",)),
    ("{}", '{"object": "text_completion", "x": ' + "[" * 200 + "]" * 200 + "}", ("response.json",)),
], ids=str)  # fmt: skip
def test_what_cannot_be_compared(server, request_text, response, words, tmp_path):
    assert_one_clear_line(verify(server, save(tmp_path, request_text, response)), *words)


def test_files_and_servers_that_are_not_there(server, tmp_path):
    paths = save(tmp_path, {"prompt": "x"}, {"object": "text_completion"})
    assert_one_clear_line(run("verify", tmp_path / "none.json", paths[1]), "none.json")
    assert_one_clear_line(run("verify", paths[0]), "RESPONSE")
    assert_one_clear_line(run("verify", *paths, "--port", 1), "127.0.0.1")
    assert_one_clear_line(run("verify", *paths, "--seed", "x"), "--seed")

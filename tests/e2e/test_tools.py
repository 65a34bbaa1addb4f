"""Calls of tools and reasoning in answers. The model's weights are random: calls are forced, by tool_choice, or written
because a grammar leaves nothing else."""
import json
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pytest
from quire_server import quire_binary
from tiny import FLAGS, TINY, QuireServer, client_of, wait_until_idle

MOVE = {
    "type": "object",
    "properties": {
        "to": {"$ref": "#/$defs/place"},
        "fast": {"type": "boolean"},
        "why": {"type": "string", "maxLength": 8},
    },
    "required": ["to", "fast"],
    "additionalProperties": False,
    "$defs": {"place": {"enum": ["north", "south \"pole\""]}},
}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "move", "description": "Go.", "parameters": MOVE, "strict": True}},
    {"type": "function", "function": {"name": "wait-a_bit", "parameters": EMPTY}},
]
SCHEMAS = {"move": MOVE, "wait-a_bit": EMPTY}


@pytest.fixture(scope="module")
def server():
    with QuireServer(TINY, *FLAGS, "--tool-call-parser", "hermes", "--reasoning_parser=qwen3") as running:
        yield running
        wait_until_idle(running)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def chat(client, **fields):
    extra = {name: fields.pop(name) for name in ("structured_outputs", "include_reasoning") if name in fields}
    fields = {"max_tokens": 200, "temperature": 1.0, "seed": 1, "tools": TOOLS, **fields}
    return client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "go"}], extra_body=extra, **fields
    )


def streamed(client, **fields):
    """Content, reasoning, calls and finish reason of a stream, added up as clients do."""
    content, reasoning, calls, finish = "", "", {}, None
    for chunk in chat(client, stream=True, **fields):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning", None) or ""
        for delta in choice.delta.tool_calls or []:
            call = calls.setdefault(delta.index, {"id": delta.id, "name": delta.function.name, "arguments": ""})
            assert delta.id in (None, call["id"])
            call["arguments"] += delta.function.arguments
        finish = choice.finish_reason or finish
    return content, reasoning, [calls[i] for i in sorted(calls)], finish


def whole(client, **fields):
    choice = chat(client, **fields).choices[0]
    message = choice.message
    calls = [
        {"id": c.id, "name": c.function.name, "arguments": c.function.arguments} for c in message.tool_calls or []
    ]
    return message.content or "", getattr(message, "reasoning", None) or "", calls, choice.finish_reason


def named(name):
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("seed", range(6))
def test_forced_calls_fit_their_parameters(client, seed):
    for choice in ("required", named("move"), named("wait-a_bit")):
        fields = {"tool_choice": choice, "seed": seed, "parallel_tool_calls": seed % 2 == 0}
        content, reasoning, calls, finish = whole(client, **fields)
        assert (content, reasoning) == ("", "")
        assert streamed(client, **fields) == (content, reasoning, calls, finish)
        if finish == "length":
            calls = calls[:-1]  # the last one may be cut
        else:
            assert finish == ("tool_calls" if choice == "required" else "stop")
            assert calls
        if seed % 2 == 1 or choice != "required":
            assert len(calls) <= 1
        for call in calls:
            jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])
        assert choice == "required" or all(call["name"] == choice["function"]["name"] for call in calls)


def test_a_written_call_comes_out_of_the_text(client):
    text = '<think>so</think>Well. <tool_call>{"name": "move", "arguments": {"to": "north"}}</tool_call>'
    fields = {"structured_outputs": {"choice": [text]}}
    content, reasoning, calls, finish = whole(client, **fields)
    assert (content, reasoning, finish) == ("Well.", "so", "tool_calls")
    assert [(c["name"], c["arguments"]) for c in calls] == [("move", '{"to": "north"}')]
    assert streamed(client, **fields) == (content, reasoning, calls, finish)
    assert whole(client, include_reasoning=False, **fields)[1] == ""
    for without in ({"tools": []}, {"tool_choice": "none"}):
        content, reasoning, calls, finish = whole(client, **fields, **without)
        assert (content, reasoning, calls, finish) == (text[text.index("Well") :], "so", [], "stop")


def test_free_answers_stay_content(client):
    content, reasoning, calls, _ = whole(client, max_tokens=20)
    assert content and not reasoning and not calls


def test_load_changes_no_call(client):
    fields = [{"tool_choice": "required", "seed": seed} for seed in range(4)] + [{"seed": 9, "max_tokens": 30}]
    alone = [whole(client, **f) for f in fields]
    many = [i % len(fields) for i in range(15)]
    random.Random(3).shuffle(many)
    with ThreadPoolExecutor(15) as threads:
        answers = list(threads.map(lambda i: whole(client, **fields[i]), many))
    assert [alone[i] for i in many] == answers


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named("fly")}, "tool_choice"),
        ({"tool_choice": "required", "structured_outputs": {"regex": "a"}}, "tool_choice"),
        ({"tool_choice": named("x"), "tools": [{"function": {"name": "x", "parameters": {"type": "what"}}}]}, "tools"),
        ({"tool_choice": "required", "tools": [{"function": {"name": "x", "parameters": {"$ref": "http://a"}}}]}, "tools"),
    ],
)
def test_what_is_wrong_is_named(client, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, **fields)
    assert refused.value.body["param"] == param


@pytest.mark.parametrize("flag", ["--tool-call-parser", "--reasoning-parser"])
def test_unknown_parsers_are_refused(flag):
    command = [quire_binary(), "serve", TINY, flag, "hermit"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert ended.returncode == 2
    assert f'{flag}: "hermit" is none of none, ' in ended.stderr

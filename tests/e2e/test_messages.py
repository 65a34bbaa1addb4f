"""/v1/messages by Anthropic's own client. The model's weights are random: what an answer holds is forced, by a format, by
tool_choice, or because a grammar leaves nothing else."""
import json
import random
from concurrent.futures import ThreadPoolExecutor

import anthropic
import jsonschema
import pytest
from quire_server import QuireServer
from tiny import FLAGS, TINY, client_of, wait_until_idle

MOVE = {
    "type": "object",
    "properties": {"to": {"enum": ["north", "south"]}, "fast": {"type": "boolean"}},
    "required": ["to", "fast"],
    "additionalProperties": False,
}
TOOLS = [{"name": "move", "description": "Go.", "input_schema": MOVE}]
WRITTEN = '<think>so</think>Well. <tool_call>{"name": "move", "arguments": {"to": "north"}}</tool_call>'
KEY = "sesame"


@pytest.fixture(scope="module")
def server():
    with QuireServer(TINY, *FLAGS, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3") as running:
        yield running
        wait_until_idle(running)


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)


def arguments(fields):
    """What the client takes by name, and what it only passes on."""
    named = ("messages", "max_tokens", "system", "tools", "tool_choice", "thinking", "stop_sequences", "metadata")
    fields = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 60, **fields}
    extra = {"seed": 1, **{name: value for name, value in fields.items() if name not in named}}
    return {"model": "m", "extra_body": extra, **{name: value for name, value in fields.items() if name in named}}


def create(client, **fields):
    return client.messages.create(**arguments(fields))


def says(message):
    """What is the same each time."""
    usage = message.usage
    return (
        [block.model_dump(exclude_none=True) for block in message.content],
        (message.stop_reason, message.stop_sequence, usage.output_tokens, usage.output_tokens_details),
        usage.input_tokens + usage.cache_read_input_tokens,
    )


def test_a_message(client):
    message = create(client, system="Be brief.", metadata={"user_id": "u"})
    assert (message.type, message.role, message.model) == ("message", "assistant", "m")
    assert message.id.startswith("msg_")
    assert message.content[0].text
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.output_tokens <= 60
    assert says(create(client, system="Be brief.")) == says(message)


def test_it_is_the_chat_of_the_same_messages(server, client):
    message = create(client, system="s", temperature=0)
    chat = client_of(server).chat.completions.create(
        model="m",
        messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "go"}],
        max_completion_tokens=60,
        temperature=0,
    )
    assert message.content[0].text == chat.choices[0].message.content
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == chat.usage.prompt_tokens


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"structured_outputs": {"choice": [WRITTEN]}, "tools": TOOLS, "max_tokens": 200},
        {"structured_outputs": {"choice": [WRITTEN]}, "tools": TOOLS, "max_tokens": 20},
        {"structured_outputs": {"choice": [WRITTEN]}, "stop_sequences": ["ell"], "max_tokens": 200},
        {"tools": TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 400},
        {"output_config": {"format": {"type": "json_schema", "schema": MOVE}}, "max_tokens": 400},
    ],
    ids=["free", "written call", "cut", "stopped", "forced call", "schema"],
)
def test_a_stream_adds_up_to_the_message(client, fields, seed):
    whole = create(client, seed=seed, **fields)
    with client.messages.stream(**arguments({"seed": seed, **fields})) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert says(message) == says(whole)
    assert text == "".join(block.text for block in whole.content if block.type == "text")


def test_thinking_and_a_call_are_blocks(client):
    message = create(
        client,
        structured_outputs={"choice": [WRITTEN]},
        tools=TOOLS,
        max_tokens=200,
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    thinking, text, call = message.content
    assert (thinking.thinking, text.text, call.name, call.input) == ("so", "Well.", "move", {"to": "north"})
    assert message.stop_reason == "tool_use"
    assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens
    # The blocks are the next turn's.
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
    turn = [{"role": "user", "content": "go"}, message.to_param(), {"role": "user", "content": [result]}]
    assert create(client, messages=turn, tools=TOOLS).content
    hidden = create(client, structured_outputs={"choice": [WRITTEN]}, max_tokens=200, thinking={"type": "disabled"})
    assert [block.type for block in hidden.content] == ["text"]


def test_a_stop_sequence_is_named(client):
    message = create(
        client, structured_outputs={"choice": ["one two three"]}, stop_sequences=["three", " two"], max_tokens=200
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " two")
    assert message.content[0].text == "one"


def test_forced_calls_fit_their_schema(client):
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "move"}):
        message = create(client, tools=TOOLS, tool_choice=choice, max_tokens=400)
        (call,) = message.content
        jsonschema.validate(call.input, MOVE)
        assert message.stop_reason == "tool_use"


def test_an_answer_that_was_begun_goes_on(client):
    begun = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "It is"}]
    answered = [*begun[:1], {"role": "assistant", "content": "It is"}, {"role": "user", "content": "go"}]
    count = client.messages.count_tokens
    assert create(client, messages=begun).content
    assert count(model="m", messages=begun).input_tokens < count(model="m", messages=answered).input_tokens


def test_tokens_are_counted(client):
    fields = {"system": "s", "messages": [{"role": "user", "content": "some words"}], "tools": TOOLS}
    counted = client.messages.count_tokens(model="m", **fields)
    usage = create(client, **fields).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_cached_tokens_stand_beside_the_others(client):
    fields = {"messages": [{"role": "user", "content": "a long prompt that is sent twice " * 20}]}
    first, second = create(client, **fields).usage, create(client, **fields).usage
    assert second.cache_read_input_tokens > first.cache_read_input_tokens
    assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens + first.cache_read_input_tokens
    with client.messages.stream(**arguments(fields)) as stream:
        assert stream.get_final_message().usage.cache_read_input_tokens == second.cache_read_input_tokens


def test_load_changes_nothing(client):
    fields = [{"seed": seed} for seed in range(3)] + [{"seed": 7, "tools": TOOLS, "tool_choice": {"type": "any"}}]
    alone = [says(create(client, **f)) for f in fields]
    many = [i % len(fields) for i in range(12)]
    random.Random(3).shuffle(many)
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda i: says(create(client, **fields[i])), many))
    assert [alone[i] for i in many] == answers


@pytest.mark.parametrize(
    "fields, error, says",
    [
        ({"temperature": 1.5}, anthropic.BadRequestError, "temperature must be a number from 0 to 1"),
        ({"max_tokens": 10**9}, anthropic.BadRequestError, "max_tokens is 1000000000"),
        ({"output_config": {"effort": "huge"}}, anthropic.BadRequestError, "effort may be"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, anthropic.BadRequestError, "tools[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, anthropic.BadRequestError, "content[0].type"),
        ({"model": "other"}, anthropic.NotFoundError, "other"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_said(client, fields, error, says):
    asked = arguments(fields)
    asked["model"] = asked["extra_body"].pop("model", "m")
    with pytest.raises(error) as refused:
        client.messages.create(**asked)
    assert says in refused.value.body["error"]["message"]
    assert refused.value.body["type"] == "error"


def test_a_key_is_asked_for():
    with QuireServer(TINY, *FLAGS, "--api-key", KEY) as locked:
        path, body = "/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "go"}]}
        status, _, text = locked.request("POST", path, body)
        assert status == 401
        assert json.loads(text)["error"]["type"] == "authentication_error"
        assert locked.request("POST", path, body, headers={"X-API-Key": KEY})[0] == 200
        assert locked.request("POST", path, body, headers={"X-API-Key": KEY + "s"})[0] == 401
        with pytest.raises(anthropic.AuthenticationError):
            create(anthropic.Anthropic(base_url=locked.url, api_key="other", max_retries=0))
        assert create(anthropic.Anthropic(base_url=locked.url, api_key=KEY, max_retries=0)).content

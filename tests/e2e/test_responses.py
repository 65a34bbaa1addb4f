"""/v1/responses by OpenAI's own client. The model's weights are random: what an answer holds is forced, by a format, by
tool_choice, or because a grammar leaves nothing else."""
import json
import random
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pydantic
import pytest
from quire_server import QuireServer
from tiny import FLAGS, TINY, client_of, wait_until_idle

MOVE = {
    "type": "object",
    "properties": {"to": {"enum": ["north", "south"]}, "fast": {"type": "boolean"}},
    "required": ["to", "fast"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "name": "move", "description": "Go.", "parameters": MOVE, "strict": True}]
WRITTEN = '<think>so</think>Well. <tool_call>{"name": "move", "arguments": {"to": "north"}}</tool_call>'


@pytest.fixture(scope="module")
def server():
    with QuireServer(TINY, *FLAGS, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3") as running:
        yield running
        wait_until_idle(running)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def create(client, **fields):
    extra = {name: fields.pop(name) for name in ("seed", "structured_outputs", "quire") if name in fields}
    fields = {"input": "go", "max_output_tokens": 60, "temperature": 1.0, **fields}
    return client.responses.create(model="m", extra_body={"seed": 1, **extra}, **fields)


def streamed(client, **fields):
    """The events of a stream, and the response that its deltas add up to by the client's own reading."""
    extra = {name: fields.pop(name) for name in ("seed", "structured_outputs") if name in fields}
    fields = {"input": "go", "max_output_tokens": 60, "temperature": 1.0, **fields}
    with client.responses.stream(model="m", extra_body={"seed": 1, **extra}, **fields) as stream:
        events = list(stream)
    return events, events[-1].response


def output_of(response):
    """What is the same each time: ids of items are of the request's."""

    def says(item):
        if item.type == "function_call":
            return item.call_id, item.name, item.arguments
        return item.content[0].text

    return [(item.type, item.status, says(item)) for item in response.output]


def test_a_response(client):
    response = create(client, instructions="Be brief.", metadata={"k": "v"})
    assert response.status in ("completed", "incomplete")
    assert response.id.startswith("resp_")
    assert response.output_text == response.output[0].content[0].text != ""
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.usage.output_tokens <= 60
    assert (response.instructions, response.metadata) == ("Be brief.", {"k": "v"})
    again = create(client, instructions="Be brief.", metadata={"k": "v"})
    assert output_of(again) == output_of(response)
    assert again.usage.input_tokens_details.cached_tokens >= 0


def test_it_is_the_chat_of_the_same_messages(client):
    response = create(client, input=[{"role": "user", "content": "a"}], instructions="s", temperature=0)
    chat = client.chat.completions.create(
        model="m",
        messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "a"}],
        max_completion_tokens=60,
        temperature=0,
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.usage.input_tokens == chat.usage.prompt_tokens


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"structured_outputs": {"choice": [WRITTEN]}, "tools": TOOLS, "max_output_tokens": 200},
        {"structured_outputs": {"choice": [WRITTEN]}, "tools": TOOLS, "max_output_tokens": 40},
        {"tools": TOOLS, "tool_choice": "required"},
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": MOVE}}},
    ],
    ids=["free", "written call", "cut call", "forced call", "schema"],
)
def test_a_stream_adds_up_to_the_response(client, fields, seed):
    whole = create(client, seed=seed, **fields)
    events, response = streamed(client, seed=seed, **fields)
    assert output_of(response) == output_of(whole)
    assert response.status == whole.status
    assert response.usage.output_tokens == whole.usage.output_tokens
    assert response.usage.output_tokens_details == whole.usage.output_tokens_details
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == f"response.{whole.status}"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text


def test_reasoning_and_a_call_are_items(client):
    response = create(
        client, structured_outputs={"choice": [WRITTEN]}, tools=TOOLS, max_output_tokens=200, reasoning={"effort": "low"}
    )
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    reasoning, message, call = response.output
    assert reasoning.content[0].text == "so"
    assert message.content[0].text == "Well."
    assert (call.name, call.arguments) == ("move", '{"to": "north"}')
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    # The items are the input of the next turn.
    turn = [{"role": "user", "content": "go"}, *[item.model_dump(exclude_none=True) for item in response.output]]
    turn.append({"type": "function_call_output", "call_id": call.call_id, "output": "done"})
    assert create(client, input=turn, tools=TOOLS).usage.input_tokens > response.usage.input_tokens


def test_forced_calls_fit_their_parameters(client):
    for choice in ("required", {"type": "function", "name": "move"}):
        response = create(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_output_tokens=400)
        (call,) = response.output
        jsonschema.validate(json.loads(call.arguments), MOVE)


class Move(pydantic.BaseModel):
    to: bool
    steps: list[bool]


def test_parse(client):
    response = client.responses.parse(
        model="m", input="go", text_format=Move, max_output_tokens=400, extra_body={"seed": 4}
    )
    assert response.status == "completed"
    assert isinstance(response.output_parsed, Move)
    with client.responses.stream(
        model="m", input="go", text_format=Move, max_output_tokens=400, extra_body={"seed": 4}
    ) as stream:
        assert stream.get_final_response().output_parsed == response.output_parsed


def test_the_cache_is_explained(client):
    response = create(client, quire={"explain": True})
    assert response.quire["groups"]


def test_load_changes_nothing(client):
    fields = [{"seed": seed} for seed in range(3)] + [{"seed": 7, "tools": TOOLS, "tool_choice": "required"}]
    alone = [output_of(create(client, **f)) for f in fields]
    many = [i % len(fields) for i in range(12)]
    random.Random(3).shuffle(many)
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda i: output_of(create(client, **fields[i])), many))
    assert [alone[i] for i in many] == answers


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "what"}}}}, "text.format"),
        ({"model": "other"}, "model"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_named(client, fields, param):
    with pytest.raises(openai.APIStatusError) as refused:
        client.responses.create(**{"model": "m", "input": "go", **fields})
    assert refused.value.status_code == (404 if param == "model" else 400)
    assert refused.value.body["param"] == param

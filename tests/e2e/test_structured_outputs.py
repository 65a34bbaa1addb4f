"""Answers that must follow a schema, an expression, a choice or a grammar, by a model whose weights are random: it
wants nothing of all that, so whatever fits, fits because it had to."""
import json
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pytest
from tiny import client, server  # noqa: F401

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b\n\"c", "日本"]}, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
    },
    "required": ["name", "age", "tags", "next"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}, "y": {"const": 7}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS = [
    PERSON,
    {"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 9}, "minItems": 2, "maxItems": 4},
    {"type": "string", "pattern": "^[a-f]{2,6}[0-9]$"},
    {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
    {"type": "object", "properties": {}, "additionalProperties": {"type": "boolean"}, "maxProperties": 0},
]
CHOICES = ["yes", "yes, but", "no\n", "(a|b)*", "日本語", "\"\\/"]
# One or more words in brackets, as deep as one likes, with a comma between.
LARK = 'start: item ("," item)*\nitem: /[a-z]{1,5}/ | "[" start "]"'
LONGEST = 300


def chat(client, text="go", **fields):
    extra = {name: fields.pop(name) for name in ("structured_outputs", "min_tokens", "ignore_eos") if name in fields}
    fields = {"max_tokens": LONGEST, "temperature": 1.0, "seed": 1, **fields}
    return client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": text}], extra_body=extra, **fields
    )


def json_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}


def follows_lark(text):
    """LARK, by hand."""
    at = 0

    def start():
        nonlocal at
        item()
        while text[at : at + 1] == ",":
            at += 1
            item()

    def item():
        nonlocal at
        if text[at : at + 1] == "[":
            at += 1
            start()
            assert text[at : at + 1] == "]", text
            at += 1
            return
        word = re.match("[a-z]+", text[at:])
        assert word, text
        at += word.end()

    start()
    return at == len(text)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: str(schema)[:30])
def test_answers_validate_against_their_schema(client, schema, temperature):
    replies = [chat(client, response_format=json_schema(schema), temperature=temperature, seed=s) for s in range(4)]
    replies.append(chat(client, structured_outputs={"json": schema}, temperature=temperature, n=3))
    replies.append(chat(client, structured_outputs={"json": json.dumps(schema)}, temperature=temperature))
    # White space between tokens may go on for ever, and a greedy answer's does: one that is cut cannot validate.
    choices = [choice for reply in replies for choice in reply.choices]
    whole = [choice.message.content for choice in choices if choice.finish_reason == "stop"]
    assert temperature == 0 or len(whole) * 2 > len(choices)
    for text in whole:
        jsonschema.validate(json.loads(text), schema)


def test_any_object(client):
    replies = [chat(client, response_format={"type": "json_object"}, seed=seed, max_tokens=400) for seed in range(6)]
    for choice in (r.choices[0] for r in replies):
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        else:
            assert choice.message.content.lstrip().startswith("{")


def test_choices_regexes_and_grammars(client):
    said = set()
    for seed in range(8):
        choice = chat(client, f"{seed} ?", structured_outputs={"choice": CHOICES}, seed=seed, temperature=9).choices[0]
        assert choice.message.content in CHOICES
        assert choice.finish_reason == "stop"
        said.add(choice.message.content)
        choice = chat(client, structured_outputs={"regex": r"(\d{1,3}\.){3}\d{1,3} (up|down)"}, seed=seed).choices[0]
        assert re.fullmatch(r"(\d{1,3}\.){3}\d{1,3} (up|down)", choice.message.content)
        choice = chat(client, structured_outputs={"grammar": LARK}, seed=seed).choices[0]
        if choice.finish_reason == "stop":
            assert follows_lark(choice.message.content)
    assert len(said) > 1


def test_a_completion_takes_them_too(client):
    reply = client.completions.create(
        model="m", prompt=["a", "b"], n=2, max_tokens=20, seed=3, extra_body={"structured_outputs": {"choice": CHOICES}}
    )
    assert len(reply.choices) == 4
    assert all(c.text in CHOICES and c.finish_reason == "stop" for c in reply.choices)


def test_a_stream_is_the_whole_answer(client):
    whole = chat(client, response_format=json_schema(PERSON), logprobs=True, top_logprobs=2)
    chunks = list(chat(client, response_format=json_schema(PERSON), logprobs=True, top_logprobs=2, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    streamed = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert streamed == whole.choices[0].logprobs.content


def test_log_probabilities_are_those_of_the_free_answer(client):
    free = chat(client, max_tokens=1, logprobs=True, top_logprobs=5).choices[0].logprobs.content[0]
    bound = chat(client, structured_outputs={"regex": "[xyz]{3}"}, logprobs=True, top_logprobs=5)
    first = bound.choices[0].logprobs.content[0]
    assert first.top_logprobs == free.top_logprobs
    assert first.token in ("x", "y", "z", "xy", "xyz") or set(first.token) <= set("xyz")


def test_other_limits_apply_beside_them(client):
    # The end of the grammar goes before min_tokens, and before an end token that is to be ignored.
    for fields in ({"min_tokens": 50}, {"ignore_eos": True}):
        reply = chat(client, structured_outputs={"choice": ["ab", "cd"]}, **fields)
        assert reply.choices[0].message.content in ("ab", "cd")
        assert reply.choices[0].finish_reason == "stop"
    reply = chat(client, structured_outputs={"regex": "[ab]{5,200}"}, min_tokens=30, max_tokens=210)
    assert reply.usage.completion_tokens >= 30
    # A stop string ends the answer where it is.
    reply = chat(client, structured_outputs={"regex": "abc;def"}, stop=[";"])
    assert reply.choices[0].message.content == "abc"
    assert reply.choices[0].finish_reason == "stop"
    reply = chat(client, structured_outputs={"regex": "a{50}"}, max_tokens=1)
    assert reply.choices[0].finish_reason == "length"


def test_an_answer_does_not_depend_on_its_company(client):
    shuffle = random.Random(4)
    jobs = []
    for seed in range(6):
        jobs += [
            {"response_format": json_schema(SCHEMAS[seed % len(SCHEMAS)]), "seed": seed},
            {"structured_outputs": {"choice": CHOICES}, "seed": seed, "temperature": 2},
            {"structured_outputs": {"grammar": LARK}, "seed": seed, "temperature": 0.3},
            {"seed": seed, "max_tokens": 40},
        ]

    def answer(fields):
        reply = chat(client, **fields, logprobs=True, top_logprobs=1)
        return [c.model_dump() for c in reply.choices], reply.usage.completion_tokens

    alone = [answer(job) for job in jobs]
    order = list(range(len(jobs)))
    for _ in range(2):
        shuffle.shuffle(order)
        with ThreadPoolExecutor(12) as pool:
            busy = dict(zip(order, pool.map(lambda i: answer(jobs[i]), order)))
        assert [busy[i] for i in range(len(jobs))] == alone


def bad_request(client, param, says="", **fields):
    start = time.monotonic()
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, **fields)
    assert refused.value.body["param"] == param, refused.value.body
    assert says in refused.value.body["message"], refused.value.body
    assert len(refused.value.body["message"]) < 2000
    assert time.monotonic() - start < 60


def nested(times):
    schema = {"type": "null"}
    for _ in range(times):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema, says",
    [
        ({"$ref": "https://example.org/schema.json"}, "example.org"),
        ({"$ref": "file:///etc/passwd"}, "passwd"),
        ({"$ref": "#/$defs/none", "$defs": {}}, "none"),
        ({"$ref": "#"}, ""),
        ({"type": "strange"}, "strange"),
        ({"type": "string", "pattern": "("}, ""),
        ({"allOf": [{"anyOf": [{"type": "string", "maxLength": i} for i in range(30)]}] * 12}, ""),
        ({"enum": [f"value number {i}" for i in range(100_000)]}, "bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_schemas_that_are_refused(client, schema, says):
    bad_request(client, "response_format", says, response_format=json_schema(schema))
    bad_request(client, "structured_outputs", says, structured_outputs={"json": json.dumps(schema)})


def test_texts_that_are_refused(client):
    for outputs, says in [
        ({"regex": "("}, "unclosed"),
        ({"regex": "(" * 60_000}, ""),
        ({"regex": "a" * 100_000}, "bytes"),
        ({"json": "[" * 100_000}, ""),
        ({"grammar": "start: " + "(" * 30_000}, "nested"),
        ({"grammar": "start: missing"}, "missing"),
        ({"choice": []}, ""),
        ({"structural_tag": "{}"}, "structural_tag"),
        ({"regex": "a", "choice": ["a"]}, "several"),
    ]:
        bad_request(client, "structured_outputs", says, structured_outputs=outputs)
    # Too deep for any JSON of a body.
    with pytest.raises(openai.BadRequestError, match="nested"):
        chat(client, response_format=json_schema(nested(200)))
    # Still there.
    assert chat(client, structured_outputs={"choice": ["ok"]}).choices[0].message.content == "ok"

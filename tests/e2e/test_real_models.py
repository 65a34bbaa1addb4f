"""Real models say sensible things, end by themselves, and say the same again under load."""
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import real_model
from tiny import client_of, wait_until_idle

from quire_server import QuireServer

QUESTIONS = ["What is the capital of France?", "Name three colours.", "What is 2 + 2?", "Why is the sky blue?"]


# The second is a base model without a template of its own: a question is a text that goes on.
MODELS = {"smollm2": (), "gemma3": ("--chat-template", "<bos>{% for m in messages %}{{ m.content }}{% endfor %}")}


@pytest.fixture(scope="module", params=MODELS)
def server(request):
    flags = ("--max-model-len", 4096, "--kv-cache-memory-bytes", 512 << 20, *MODELS[request.param])
    with QuireServer(real_model(request.param), *flags) as running:
        yield running
        wait_until_idle(running)


def ask(client, question, **fields):
    fields = {"max_tokens": 20, "temperature": 0, **fields}
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": question}], **fields)


def test_it_knows_a_capital(server):
    prompt = "Paris is the capital of France. Rome is the capital of Italy. Berlin is the capital of"
    reply = client_of(server).completions.create(model="m", prompt=prompt, max_tokens=2, temperature=0)
    assert reply.choices[0].text.startswith(" Germany")


def test_an_instructed_model_answers_and_ends():
    with QuireServer(real_model("smollm2"), "--max-model-len", 2048, "--kv-cache-memory-bytes", 128 << 20) as server:
        prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        choice = client_of(server).completions.create(model="m", prompt=prompt, max_tokens=48, temperature=0).choices[0]
        assert "Paris" in choice.text
        assert choice.finish_reason == "stop"
        assert "<|im_end|>" not in choice.text


def test_a_chat_streams_what_it_says(server):
    client = client_of(server)
    for question in QUESTIONS[:2]:
        whole = ask(client, question).choices[0]
        pieces = [chunk.choices[0] for chunk in ask(client, question, stream=True)]
        assert "".join(piece.delta.content or "" for piece in pieces) == whole.message.content
        assert pieces[-1].finish_reason == whole.finish_reason


def test_an_answer_does_not_depend_on_load(server):
    client = client_of(server)

    def answer(index):
        reply = ask(client, QUESTIONS[index % 4], temperature=0.8, seed=index // 4, logprobs=True, top_logprobs=2)
        return reply.choices[0].model_dump()

    alone = [answer(index) for index in range(6)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(answer, list(range(6)) * 2)) == alone * 2


def test_text_of_many_scripts_comes_back(server):
    for text in ("Grüße aus Köln", "日本語のテキスト", "emoji 😀👩‍👩‍👧 and\ttabs\n\nlines", "  spaces  "):
        tokens = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        assert server.post("/detokenize", {"tokens": tokens})["prompt"] == text

"""Embeddings, rankings and scores: the reference's numbers, the official client, and the same bits at any load."""
import base64
import json
import math
import random
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import safetensors_file
from tiny import FLAGS, TINY, client, client_of, server, wait_until_idle  # noqa: F401

from quire_server import ROOT, QuireServer

QWEN3 = ROOT / "tests" / "golden" / "models" / "qwen3"
HIDDEN = json.loads((TINY / "config.json").read_text())["hidden_size"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
NAMED = ["yes", "no", *SPECIAL]  # with ids from 256 on; the words are no special tokens, and no text of bytes makes them


def unit(numbers):
    length = math.sqrt(sum(x * x for x in numbers))
    return [x / length for x in numbers]


def bits(embedding):
    return struct.pack(f"<{len(embedding)}f", *embedding)


def embed(client, texts, **fields):
    fields = {"encoding_format": "float", **fields}
    reply = client.embeddings.create(model="m", input=texts, **fields)
    assert [entry.index for entry in reply.data] == list(range(len(reply.data)))
    return [entry.embedding for entry in reply.data]


def test_embeddings_are_the_references():
    golden = json.loads((TINY / "golden.json").read_text())["prompts"]
    states = json.loads((TINY / "last_hidden.json").read_text())
    with QuireServer(TINY, *FLAGS, "--dtype", "float32") as running:
        ours = embed(client_of(running), [prompt["ids"] for prompt in golden])
        halves = embed(client_of(running), [prompt["ids"] for prompt in golden], dimensions=HIDDEN // 2)
        wait_until_idle(running)
    for embedding, half, state in zip(ours, halves, states, strict=True):
        assert embedding == pytest.approx(unit(state), abs=1e-3)
        assert half == pytest.approx(unit(state[: HIDDEN // 2]), abs=1e-3)


# As sentence-transformers saves embedding models: the tensors of the model inside, whose names lack its own.
@pytest.mark.parametrize("name", ["qwen3", "qwen2"])
def test_a_checkpoint_saved_without_its_head_gives_the_same(name, tmp_path):
    source, bare = QWEN3.parent / name, tmp_path / "bare"
    shutil.copytree(source, bare)
    tensors = safetensors_file.read(source / "model.safetensors")
    assert any(key.startswith("model.") for key in tensors)
    safetensors_file.write(bare / "model.safetensors", {key.removeprefix("model."): value for key, value in tensors.items()})
    found = []
    for folder in (source, bare):
        with QuireServer(folder, *FLAGS) as running:
            found.append([bits(e) for e in embed(client_of(running), [[5, 6, 7], list(range(3, 90))])])
    assert found[0] == found[1]


def test_the_client_decodes_base64_to_the_same(client):
    [floats] = embed(client, "some words")
    reply = client.embeddings.create(model="m", input="some words")  # base64 is its own default
    assert bits(reply.data[0].embedding) == bits(floats)
    assert len(floats) == HIDDEN
    assert sum(x * x for x in floats) == pytest.approx(1, abs=1e-5)
    raw = client.post("/embeddings", body={"input": "some words", "encoding_format": "base64"}, cast_to=object)
    assert base64.b64decode(raw["data"][0]["embedding"]) == bits(floats)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 0


def test_a_batch_beside_chats_gives_the_bits_of_one_alone(client):
    rng = random.Random(1)
    texts = [[rng.randrange(3, 200) for _ in range(rng.randrange(1, 180))] for _ in range(40)]
    alone = [bits(embed(client, [text], extra_body={"cache_salt": str(i)})[0]) for i, text in enumerate(texts)]

    def chat(i):
        return client.completions.create(
            model="m", prompt=[5 + i] * 50, max_tokens=60, temperature=0, extra_body={"ignore_eos": True, "return_token_ids": True}
        ).choices[0].token_ids

    chats = [chat(i) for i in range(4)]
    with ThreadPoolExecutor(8) as pool:
        beside = [pool.submit(chat, i) for i in range(4)]
        batches = [pool.submit(embed, client, texts) for _ in range(4)]
        for batch in batches:
            assert [bits(embedding) for embedding in batch.result()] == alone
        assert [future.result() for future in beside] == chats


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [10**9]}, "input"),
        ({"input": ["a", ["b"]]}, "input"),
        ({"input": [[1]] * 2049}, "input"),
        ({"input": "x" * (1 << 20)}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": HIDDEN + 1}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"truncate_prompt_tokens": 10**9}, "truncate_prompt_tokens"),
        ({"cache_salt": "s" * 2000}, "cache_salt"),
        ({"priority": 2**40}, "priority"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_fields_are_named(server, fields, param):
    status, _, body = server.request("POST", "/v1/embeddings", {"input": "a", **fields})
    assert status == 400, body
    assert json.loads(body)["error"]["param"] == param


def test_no_mutation_of_a_request_is_a_fault_of_the_server(server):
    rng = random.Random(7)
    bodies = {
        "/v1/embeddings": {"model": "m", "input": ["a", "bc"], "dimensions": 8, "encoding_format": "base64", "user": "u"},
        "/v1/rerank": {"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1},
        "/v1/score": {"text_1": "a", "text_2": ["b", "c"], "truncate_prompt_tokens": 5},
    }
    for path, body in bodies.items():
        text = json.dumps(body).encode()
        for _ in range(150):
            broken = bytearray(text)
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(broken))
                broken[at : at + rng.randrange(3)] = bytes(rng.choice(b'{}[]",:0123456789-e.ntf\\ \xff') for _ in range(rng.randrange(3)))
            status, _, _ = server.request("POST", path, bytes(broken), {"Content-Type": "application/json"})
            assert status in (200, 400, 404), (path, bytes(broken))


def test_leaving_gives_every_block_back(server):
    impatient = client_of(server).with_options(timeout=0.05)
    with pytest.raises(openai.APITimeoutError):
        for _ in range(20):
            embed(impatient, [[7 + i % 90] * 500 for i in range(400)])
    wait_until_idle(server)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    """The qwen3 fixture with a tokenizer of bytes that knows the tokens of Qwen3-Reranker's prompt."""
    folder = tmp_path_factory.mktemp("reranker")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(QWEN3 / name, folder / name)
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in printable]
    vocabulary = {chr(b if b in printable else 256 + others.index(b)): b for b in range(256)}
    vocabulary |= {"yes": 256 + NAMED.index("yes"), "no": 256 + NAMED.index("no")}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": 258 + i, "content": name, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for i, name in enumerate(SPECIAL)
    ]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": level, "decoder": level,
        # as Qwen3-Embedding has it
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [258], "tokens": ["<|endoftext|>"]}},
        },
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }))  # fmt: skip
    with QuireServer(folder, "--kv-cache-memory-bytes", 16 << 20, "--check-integrity") as running:
        yield running
        wait_until_idle(running)


def ids_of(*parts):
    ids = []
    for part in parts:
        ids += [256 + NAMED.index(part)] if part in NAMED else list(part.encode())
    return ids


def probability_of_yes(client, query, document):
    """From the log-probabilities of completions behind the published prompt."""
    prompt = ids_of(
        "<|im_start|>",
        "system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
        'Note that the answer can only be "yes" or "no".',
        "<|im_end|>", "\n", "<|im_start|>",
        "user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        f"<Query>: {query}\n<Document>: {document}",
        "<|im_end|>", "\n", "<|im_start|>", "assistant\n", "<think>", "\n\n", "</think>", "\n\n",
    )  # fmt: skip
    logprobs = [
        client.completions.create(
            model="m", prompt=prompt, max_tokens=1, logprobs=0, temperature=0, extra_body={"allowed_token_ids": ids_of(name)}
        ).choices[0].logprobs.token_logprobs[0]
        for name in ("yes", "no")
    ]  # fmt: skip
    return 1 / (1 + math.exp(logprobs[1] - logprobs[0]))


def test_a_ranking_is_the_probability_of_yes(reranker):
    client = client_of(reranker)
    documents = ["The sky.", "Two cats and a dog.", "", "Rain is water that falls."]
    expected = [probability_of_yes(client, "What is rain?", document) for document in documents]
    reply = client.post("/rerank", body={"query": "What is rain?", "documents": documents}, cast_to=object)
    by_index = {result["index"]: result for result in reply["results"]}
    assert [by_index[i]["relevance_score"] for i in range(4)] == pytest.approx(expected, abs=1e-5)
    assert [by_index[i]["document"]["text"] for i in range(4)] == documents
    scores = [result["relevance_score"] for result in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    again = client.post("/score", body={"text_1": "What is rain?", "text_2": documents}, cast_to=object)
    assert [entry["score"] for entry in again["data"]] == [by_index[i]["relevance_score"] for i in range(4)]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_an_embedding_is_of_the_end_token_behind_the_text(reranker):
    client = client_of(reranker)
    [text], [ids] = embed(client, "hello"), embed(client, ids_of("hello", "<|endoftext|>"))
    [cut] = embed(client, "hello, you", extra_body={"truncate_prompt_tokens": 6})
    assert bits(text) == bits(ids) == bits(cut)
    assert bits(text) != bits(embed(client, ids_of("hello"))[0])

"""The official client against the built server: every kind of request, and the same bits at any load."""
import random
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from tiny import TINY, client, server  # noqa: F401

PROMPT = list(range(10, 110))
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]


def complete(client, **fields):
    fields = {"model": "m", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **fields}
    extra = {name: fields.pop(name) for name in list(fields) if name in EXTRA}
    return client.completions.create(**fields, extra_body=extra)


EXTRA = (
    "ignore_eos", "min_tokens", "stop_token_ids", "return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs",
    "allowed_token_ids", "include_stop_str_in_output", "skip_special_tokens", "top_k", "min_p", "repetition_penalty",
    "truncate_prompt_tokens", "cache_salt",
)  # fmt: skip


def test_models_are_listed(client):
    [model] = client.models.list().data
    assert model.id == "m"
    assert client.models.retrieve("m").id == "m"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_a_completion_says_what_it_used(client):
    reply = complete(client, ignore_eos=True, return_token_ids=True)
    [choice] = reply.choices
    assert reply.object == "text_completion"
    assert choice.finish_reason == "length"
    assert reply.usage.prompt_tokens == len(PROMPT)
    assert reply.usage.completion_tokens == 12 == len(choice.token_ids)
    assert reply.usage.total_tokens == len(PROMPT) + 12
    assert choice.prompt_token_ids == PROMPT
    assert reply.system_fingerprint.startswith("quire-")
    assert complete(client).system_fingerprint == reply.system_fingerprint


def test_a_repeated_prompt_is_cached(client):
    prompt = [7] * 60 + [9] * 60
    complete(client, prompt=prompt)
    assert complete(client, prompt=prompt).usage.prompt_tokens_details.cached_tokens > 0
    assert complete(client, prompt=prompt, cache_salt="other").usage.prompt_tokens_details.cached_tokens == 0


def test_every_kind_of_prompt(client):
    one = complete(client, prompt="some words", ignore_eos=True, return_token_ids=True).choices[0]
    two = complete(client, prompt=["some words", "other words"], ignore_eos=True, return_token_ids=True).choices
    ids = complete(client, prompt=[one.prompt_token_ids, [5, 6, 7]], ignore_eos=True, return_token_ids=True).choices
    assert [c.index for c in two] == [0, 1]
    assert two[0].token_ids == ids[0].token_ids == one.token_ids
    assert two[0].text == one.text


def test_streams_say_the_same_as_whole_answers(client):
    whole = complete(client, max_tokens=60, ignore_eos=True)
    chunks = list(complete(client, max_tokens=60, ignore_eos=True, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 60
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1


def test_chats_and_their_streams(client):
    fields = {"model": "m", "messages": MESSAGES, "max_completion_tokens": 30, "temperature": 0}
    whole = client.chat.completions.create(**fields)
    assert whole.object == "chat.completion"
    assert whole.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(**fields, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_chat_goes_on_to_the_end_of_the_context(server, client):
    length = client.models.list().data[0].max_model_len
    reply = client.chat.completions.create(model="m", messages=MESSAGES, temperature=0, extra_body={"ignore_eos": True})
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.total_tokens == length


def test_a_chat_is_its_rendered_prompt(server, client):
    chat = server.post("/tokenize", {"messages": MESSAGES})["tokens"]
    text = server.post("/tokenize", {"prompt": "<bos><system>Be brief. <user>Hello there<assistant>", "add_special_tokens": False})
    assert chat == text["tokens"]
    reply = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=8, temperature=0)
    assert reply.choices[0].message.content == complete(client, prompt=chat, max_tokens=8).choices[0].text


def test_logprobs_of_completions(client):
    reply = complete(client, logprobs=3, prompt_logprobs=2, return_tokens_as_token_ids=True, return_token_ids=True, ignore_eos=True)
    choice = reply.choices[0]
    assert choice.logprobs.tokens == [f"token_id:{t}" for t in choice.token_ids]
    for name, logprob, top in zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs):
        assert top[name] == logprob == max(top.values()) <= 0  # greedy takes the likeliest
        assert 3 <= len(top) <= 4
    assert choice.prompt_logprobs[0] is None
    assert len(choice.prompt_logprobs) == len(PROMPT)
    for token, position in zip(PROMPT[1:], choice.prompt_logprobs[1:]):
        assert position[str(token)]["logprob"] <= max(entry["logprob"] for entry in position.values()) <= 0
        assert min(entry["rank"] for entry in position.values()) == 1


def test_logprobs_of_chats(client):
    reply = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2)
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens
    for entry in content:
        assert len(entry.top_logprobs) == 2
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0


def test_an_echo_scores_the_prompt(client):
    reply = complete(client, echo=True, max_tokens=0, logprobs=1, return_token_ids=True)
    choice = reply.choices[0]
    scored = complete(client, prompt_logprobs=1).choices[0].prompt_logprobs
    assert reply.usage.completion_tokens == 0
    assert len(choice.logprobs.tokens) == len(PROMPT)
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == [p[str(t)]["logprob"] for t, p in zip(PROMPT[1:], scored[1:])]


@pytest.mark.parametrize("fields", [{}, {"n": 3, "temperature": 0.8, "seed": 7}, {"prompt": [PROMPT, PROMPT[:1], PROMPT[5:]]},
                                    {"max_tokens": 0}], ids=str)  # fmt: skip
def test_a_streamed_echo_adds_up_to_the_whole_one(client, fields):
    fields = {"echo": True, "logprobs": 2, "ignore_eos": True, **fields}
    whole = complete(client, **fields)
    texts, lists, ends = {}, {}, []
    for chunk in complete(client, stream=True, **fields):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                ends.append(choice.index)
            for name, values in choice.logprobs.model_dump().items():
                lists.setdefault(choice.index, {}).setdefault(name, []).extend(values)
    assert sorted(ends) == [choice.index for choice in whole.choices]
    for choice in whole.choices:
        assert texts[choice.index] == choice.text
        assert lists[choice.index] == choice.logprobs.model_dump()


def test_several_answers(client):
    reply = complete(client, n=4, temperature=1.0, seed=5, return_token_ids=True, ignore_eos=True)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert len({tuple(choice.token_ids) for choice in reply.choices}) == 4
    assert reply.usage.completion_tokens == 48
    assert complete(client, temperature=1.0, seed=5, return_token_ids=True, ignore_eos=True).choices[0].token_ids == reply.choices[0].token_ids


def test_stop_strings(client):
    text = complete(client, max_tokens=40, ignore_eos=True).choices[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    reply = complete(client, max_tokens=40, ignore_eos=True, stop=[stop, "never there"])
    assert reply.choices[0].text == text[: text.index(stop)]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].stop_reason == stop
    kept = complete(client, max_tokens=40, ignore_eos=True, stop=stop, include_stop_str_in_output=True)
    assert kept.choices[0].text == text[: text.index(stop)] + stop
    streamed = "".join(c.choices[0].text for c in complete(client, max_tokens=40, ignore_eos=True, stop=stop, stream=True))
    assert streamed == reply.choices[0].text


def test_stop_tokens_and_the_fewest(client):
    ids = complete(client, max_tokens=20, ignore_eos=True, return_token_ids=True).choices[0].token_ids
    stop = ids[10]
    choice = complete(client, max_tokens=20, ignore_eos=True, stop_token_ids=[stop], return_token_ids=True).choices[0]
    assert choice.token_ids == ids[: ids.index(stop) + 1]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    later = complete(client, max_tokens=20, ignore_eos=True, stop_token_ids=[stop], min_tokens=15, return_token_ids=True).choices[0]
    assert stop not in later.token_ids[:15] and len(later.token_ids) >= 15


def test_bias_and_allowed_tokens(client):
    assert complete(client, logit_bias={"33": 100}, return_token_ids=True, max_tokens=4).choices[0].token_ids == [33] * 4
    allowed = complete(client, allowed_token_ids=[40, 41], temperature=1.0, seed=1, return_token_ids=True).choices[0].token_ids
    assert set(allowed) <= {40, 41}


def test_a_chosen_seed_is_told_and_replays(client):
    raw = client.completions.with_raw_response.create(model="m", prompt=PROMPT, max_tokens=12, temperature=1.0)
    seed = int(raw.headers["x-quire-seed"])
    again = complete(client, temperature=1.0, seed=seed)
    assert again.choices[0].text == raw.parse().choices[0].text


def test_tokenize_and_back(server):
    for text in ("Hello world", "naïve café", "日本 😀", " two  spaces\n\n"):
        tokens = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        assert server.post("/detokenize", {"tokens": tokens})["prompt"] == text


def request_of(index):
    """Requests of many kinds, the same for the same index."""
    pick = random.Random(index)
    prompt = PROMPT[: pick.randint(1, 60)] + [pick.randint(3, 500) for _ in range(pick.randint(1, 120))]
    fields = {"prompt": prompt, "max_tokens": pick.randint(1, 40), "logprobs": 2, "return_token_ids": True, "seed": index}
    fields["temperature"] = pick.choice([0, 0.7, 1.3])
    if pick.random() < 0.3:
        fields.update(top_p=0.9, top_k=40)
    if pick.random() < 0.3:
        fields.update(repetition_penalty=1.2, presence_penalty=0.5)
    if pick.random() < 0.3:
        fields["prompt_logprobs"] = 1
    if pick.random() < 0.2:
        fields["n"] = 2
    return fields


def answer_to(client, index):
    return [choice.model_dump() for choice in complete(client, **request_of(index)).choices]


def test_answers_do_not_depend_on_load(client):
    indices = list(range(24))
    alone = [answer_to(client, index) for index in indices]
    shuffled = indices * 2
    random.Random(3).shuffle(shuffled)
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda index: (index, answer_to(client, index)), shuffled))
    for index, answer in together:
        assert answer == alone[index], f"request {index} differs under load"


def test_the_fixture_is_hybrid():
    assert "sliding_attention" in (TINY / "config.json").read_text()

"""What a request learns of the cache, and what /metrics tells of its groups."""
import random

import pytest
from tiny import FLAGS, TINY, client_of, wait_until_idle

from quire_server import HttpError, QuireServer

EXPLAIN = {"quire": {"explain": True}}


def prompt_of(seed, length=400):
    return random.Random(seed).choices(range(10, 200), k=length)


def complete(client, prompt, **extra):
    return client.completions.create(
        model="m", prompt=prompt, max_tokens=4, temperature=0, extra_body={"ignore_eos": True, **EXPLAIN, **extra}
    )


def assert_whole(explained, tokens):
    """Hit and misses of every group make up the prompt, without a gap."""
    for group in explained["groups"]:
        at = group["hit_tokens"]
        for miss in group["misses"]:
            assert miss["from"] == at < miss["to"]
            at = miss["to"]
        assert at == tokens


def reasons(explained, kind):
    return {miss["reason"] for group in explained["groups"] if group["kind"] == kind for miss in group["misses"]}


@pytest.fixture(scope="module")
def server():
    # Room for a few of these prompts.
    flags = [*FLAGS, "--max-model-len", 512]
    flags[flags.index("--kv-cache-memory-bytes") + 1] = 1 << 20
    with QuireServer(TINY, *flags) as running:
        yield running
        wait_until_idle(running)


def test_a_prompt_is_explained_from_the_first_time_to_its_eviction(server):
    client = client_of(server)
    prompt = prompt_of(1)
    cold = complete(client, prompt).model_extra["quire"]
    assert_whole(cold, 400)
    assert cold["minimum_reuse_tokens"] == 32
    assert min(cold["queue_ms"], cold["prefill_ms"], cold["decode_ms"]) >= 0 < cold["prefill_ms"]
    assert {group["kind"] for group in cold["groups"]} == {"full", "sliding window"}
    assert [group["group"] for group in cold["groups"]] == list(range(len(cold["groups"])))
    assert reasons(cold, "full") == reasons(cold, "sliding window") == {"never_seen", "below_minimum"}

    reply = complete(client, prompt)
    warm = reply.model_extra["quire"]
    assert_whole(warm, 400)
    assert {group["hit_tokens"] for group in warm["groups"]} == {reply.usage.prompt_tokens_details.cached_tokens} == {384}
    assert reasons(warm, "full") == {"below_minimum"}

    salted = complete(client, prompt, cache_salt="mine").model_extra["quire"]
    assert reasons(salted, "full") == {"salt_or_adapter", "below_minimum"}

    def evictions():
        name = "quire:kv_cache_group_evictions_total{"
        return sum(value for key, value in server.metrics().items() if key.startswith(name) and 'kind="full"' in key)

    assert evictions() == 0
    seed = 2
    while evictions() < 12:  # what is cached of the prompt; it is the oldest
        complete(client, prompt_of(seed))
        seed += 1
        assert seed < 100
    gone = complete(client, prompt).model_extra["quire"]
    assert_whole(gone, 400)
    assert "evicted" in reasons(gone, "full")
    [first] = [group["misses"][0] for group in gone["groups"] if group["kind"] == "full"]
    assert first["from"] == 0 and 0 <= first["evicted_seconds_ago"] < 600


def test_a_stream_is_explained_in_its_last_chunk(server):
    client = client_of(server)
    fields = {"model": "m", "prompt": prompt_of(50), "max_tokens": 4, "stream": True, "extra_body": EXPLAIN}
    for usage in ({}, {"stream_options": {"include_usage": True}}):
        chunks = list(client.completions.create(**fields, **usage))
        assert_whole(chunks[-1].model_extra["quire"], 400)
        assert not any("quire" in chunk.model_extra for chunk in chunks[:-1])
        assert bool(chunks[-1].choices) != bool(usage)


def test_unknown_members_and_many_answers_are_refused(server):
    for body in ({"quire": {"explian": True}}, {"quire": 1}, {"quire": {"explain": "yes"}}, {"n": 2, **EXPLAIN}):
        with pytest.raises(HttpError) as refusal:
            server.post("/v1/completions", {"prompt": [5, 6, 7], **body})
        assert refusal.value.status == 400
        assert refusal.value.body["error"]["param"] == "quire"


def test_metrics_tell_of_every_group_and_of_times(server):
    client = client_of(server)
    before = server.metrics()
    reply = complete(client, prompt_of(60))
    complete(client, prompt_of(60))
    wait_until_idle(server)
    after = server.metrics()

    def of(name, samples):
        return {key: value for key, value in samples.items() if key.startswith(name + "{")}

    groups = reply.model_extra["quire"]["groups"]
    for name in ("held_blocks", "retained_blocks", "evictions_total", "hit_tokens_total"):
        found = of(f"quire:kv_cache_group_{name}", after)
        assert len(found) == len(groups)
        for group in groups:
            labels = f'group="{group["group"]}",kind="{group["kind"]}"'
            assert any(labels in key for key in found)
    assert set(of("quire:kv_cache_group_held_blocks", after).values()) == {0}
    assert min(of("quire:kv_cache_group_retained_blocks", after).values()) > 0
    gained = sum(of("quire:kv_cache_group_hit_tokens_total", after).values())
    assert gained > sum(of("quire:kv_cache_group_hit_tokens_total", before).values())

    for name in ("queue", "prefill", "decode", "inference"):
        [count_before] = of(f"vllm:request_{name}_time_seconds_count", before).values()
        [count_after] = of(f"vllm:request_{name}_time_seconds_count", after).values()
        assert count_after - count_before == 2
    [steps] = of("quire:engine_steps_total", after).values()
    [counted] = of("vllm:iteration_tokens_total_count", after).values()
    assert steps == counted

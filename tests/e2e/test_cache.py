"""The hybrid cache of a running server: whatever it keeps, shares and gives back, answers are those without it."""
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from tiny import TEMPLATE, TINY, wait_until_idle

from quire_server import QuireServer

COMMON = ("--chat-template", TEMPLATE, "--max-model-len", 512, "--max-num-batched-tokens", 64, "--check-integrity")
AMPLE = 8 << 20  # bytes
SCARCE = {True: 100_000, False: 270_000}  # room for one longest request and little more, with groups and without


def prompts():
    """Chats of three turns over one beginning: each turn is the prefix of the next."""
    source = random.Random(7)

    def ids(count):
        return source.choices(range(10, 500), k=count)

    beginning = ids(70)
    chats = [beginning + ids(40 + 20 * chat) for chat in range(6)]
    return [(chat, chat + ids(90), chat + ids(150)) for chat in chats]


def answers(server):
    """Token ids and log-probabilities of all chats, which run at once, each its turns one after the other."""

    def chat(turns):
        results = []
        for turn in turns:
            body = {"model": "m", "prompt": turn, "max_tokens": 60, "temperature": 0, "ignore_eos": True, "logprobs": 2}
            reply = server.post("/v1/completions", {**body, "return_token_ids": True})
            choice = reply["choices"][0]
            results.append((choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]))
        return results

    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(chat, prompts()))


@pytest.fixture(scope="module")
def plain():
    """Without groups, without a prefix cache, one request at a time, in one piece."""
    flags = ("--kv-cache-memory-bytes", AMPLE, "--disable-hybrid-kv-cache-manager", "--no-enable-prefix-caching")
    with QuireServer(TINY, *COMMON, *flags, "--max-num-seqs", 1, "--threads", 1) as server:
        yield answers(server)


@pytest.mark.parametrize("flags", [
    (),
    ("--no-enable-prefix-caching",),
    ("--disable-hybrid-kv-cache-manager",),
    ("--block-size", 16),
    ("--kv-cache-layout", "LBHNC", "--scheduling-policy", "priority"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("scarce", [False, True], ids=["ample", "scarce"])
def test_answers_do_not_depend_on_the_cache(plain, scarce, flags):
    size = SCARCE["--disable-hybrid-kv-cache-manager" not in flags] if scarce else AMPLE
    with QuireServer(TINY, *COMMON, "--kv-cache-memory-bytes", size, *flags) as server:
        for _ in range(2):
            assert answers(server) == plain
        samples = wait_until_idle(server)
        if scarce:
            assert samples["vllm:num_preemptions_total"] > 0
        if "--no-enable-prefix-caching" not in flags:
            assert samples["vllm:prefix_cache_hits_total"] > 0
        assert " error " not in server.log()

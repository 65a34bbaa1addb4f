"""A tiny hybrid model (five window layers to one full) behind the built server, and the official client for it."""
import time

import openai
import pytest

from quire_server import ROOT, QuireServer

TINY = ROOT / "tests" / "golden" / "models" / "gemma3"
# The fixture has no chat template of its own. It fits the flag as text.
TEMPLATE = (
    "<bos>{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if not loop.last %} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FLAGS = ("--chat-template", TEMPLATE, "--kv-cache-memory-bytes", 16 << 20, "--check-integrity")


def figures(server):
    """The samples of /metrics that have no labels beyond the model's, by their names."""
    return {name.split("{")[0]: value for name, value in server.metrics().items()}


def wait_until_idle(server, seconds=20):
    """Waits until nothing runs, then demands that every block is free."""
    end = time.monotonic() + seconds
    while True:
        samples = figures(server)
        busy = samples["vllm:num_requests_running"] + samples["vllm:num_requests_waiting"]
        if busy == 0 and samples["vllm:kv_cache_usage_perc"] == 0:
            break
        assert time.monotonic() < end, f"still busy after {seconds} s: {samples}"
        time.sleep(0.02)
    assert samples["quire:kv_cache_free_blocks"] == samples["quire:kv_cache_total_blocks"]
    return samples


def client_of(server, **options):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120, **options)


@pytest.fixture(scope="module")
def server():
    with QuireServer(TINY, *FLAGS) as running:
        yield running
        wait_until_idle(running)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)

"""Streaming load for any server with the OpenAI completions API, and what a client sees of it.

Threads with blocking sockets: a client that polls would take the cores from the server that it measures.
"""
import http.client
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field


@dataclass
class Stream:
    """One streamed answer: when it was asked for and when each event came, in seconds of the monotonic clock."""

    asked: float
    events: list = field(default_factory=list)
    completion_tokens: int | None = None
    token_ids: list = field(default_factory=list)  # of the answer, where asked for

    @property
    def time_to_first(self):
        return self.events[0] - self.asked


def random_ids(seed, count):
    """Token ids that every model here has, and that no cache has seen unless the seed repeats."""
    source = random.Random(seed)
    return [source.randrange(1000, 40000) for _ in range(count)]


def stream(port, prompt, max_tokens, on_event=None, stop=None, **fields):
    """Asks for exactly `max_tokens` greedy tokens and reads events until the end, or until `stop` (an Event) is set.
    `fields` are further ones of the request."""
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    result = Stream(time.monotonic())
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"HTTP {reply.status}: {reply.read()[:300]!r}")
        while not (stop and stop.is_set()):
            line = reply.readline()
            if not line or line.strip() == b"data: [DONE]":
                break
            if not line.startswith(b"data: "):
                continue
            now = time.monotonic()
            event = json.loads(line[len(b"data: ") :])
            if event.get("usage"):
                result.completion_tokens = event["usage"]["completion_tokens"]
            for choice in event.get("choices", ()):
                result.token_ids += choice.get("token_ids") or []
            # A last event may bring the reason of the end alone.
            if event.get("choices") and not (event["choices"][0].get("finish_reason") and not event["choices"][0]["text"]):
                result.events.append(now)
                if on_event:
                    on_event(result)
    finally:
        connection.close()
    return result


def shared_prefix(port, seed, clients=4, requests=32, prefix=1500, suffix=64, out=64):
    """Many requests over one prefix that the server has not seen before: output tokens a second, and each time to the first."""
    start = random_ids(seed, prefix)
    prompts = [start + random_ids((seed << 16) + 1 + i, suffix) for i in range(requests)]
    begin = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        streams = list(pool.map(lambda prompt: stream(port, prompt, out), prompts))
    seconds = time.monotonic() - begin
    tokens = sum(s.completion_tokens or 0 for s in streams)
    if tokens != requests * out:
        raise RuntimeError(f"{tokens} tokens were generated instead of {requests * out}")
    return {"tokens_per_second": tokens / seconds, "times_to_first": [s.time_to_first for s in streams]}


def chats(port, seed, clients, turns=3, document=3000, question=32, answer=64):
    """Each client asks about a document of its own, all at once, and asks again when all are answered: output tokens a
    second of the first answers and of the later ones."""
    talks = [random_ids((seed << 16) + client, document) for client in range(clients)]
    rates = []
    for turn in range(turns):
        for client, talk in enumerate(talks):
            talk += random_ids((seed << 16) + clients * (turn + 1) + client, question)
        begin = time.monotonic()
        with ThreadPoolExecutor(clients) as pool:
            replies = list(pool.map(lambda talk: stream(port, talk, answer, return_token_ids=True), talks))
        rates.append(time.monotonic() - begin)
        for talk, reply in zip(talks, replies):
            if len(reply.token_ids) != answer:
                raise RuntimeError(f"{len(reply.token_ids)} tokens were generated instead of {answer}")
            talk += reply.token_ids
    tokens = clients * answer
    return tokens / rates[0], (turns - 1) * tokens / sum(rates[1:])


def many_clients(port, seed, clients=16, requests=48, prompt=160, out=200):
    """Clients with prompts and answers of their own, a quarter shorter to a quarter longer: output tokens a second."""
    source = random.Random(seed)
    around = lambda middle: source.randrange(middle * 3 // 4, middle * 5 // 4 + 1)  # noqa: E731
    asked = [(random_ids((seed << 16) + i, around(prompt)), around(out)) for i in range(requests)]
    begin = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        streams = list(pool.map(lambda one: stream(port, *one), asked))
    seconds = time.monotonic() - begin
    tokens, wanted = sum(s.completion_tokens or 0 for s in streams), sum(out for _, out in asked)
    if tokens != wanted:
        raise RuntimeError(f"{tokens} tokens were generated instead of {wanted}")
    return tokens / seconds


def long_prompt_beside(port, seed, decodes=4, prompt=6000, settled=20, tail=0.5):
    """A long prompt arrives while others stream: the gaps between the others' events until it has its first token,
    and how long another such prompt takes alone."""
    stop, ready = threading.Event(), threading.Semaphore(0)

    def settle(result):
        if len(result.events) == settled:
            ready.release()

    with ThreadPoolExecutor(decodes) as pool:
        running = [
            pool.submit(stream, port, random_ids((seed << 16) + i, 32), 4000, settle, stop) for i in range(decodes)
        ]
        for _ in range(decodes):
            if not ready.acquire(timeout=120):
                raise RuntimeError("the decodes did not start")
        arrived = stream(port, random_ids((seed << 16) + decodes, prompt), 1)
        time.sleep(tail)
        stop.set()
        streams = [future.result() for future in running]
    alone = stream(port, random_ids((seed << 16) + decodes + 1, prompt), 1)
    begin, end = arrived.asked, arrived.events[0]
    gaps = [
        later - earlier
        for s in streams
        for earlier, later in zip(s.events, s.events[1:])
        if later >= begin and earlier <= end
    ]
    return {"gaps": gaps, "time_to_first": arrived.time_to_first, "alone": alone.time_to_first}

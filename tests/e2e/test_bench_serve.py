"""quire bench serve: the load is the one asked for, and the figures are those of what its clients saw."""
import json
import statistics
import threading
import time

import pytest
from fake_server import FakeServer, send_event, send_json, start_events
from test_program import assert_one_clear_line, run
from tiny import TINY, server  # noqa: F401

VOCABULARY = json.loads((TINY / "config.json").read_text())["vocab_size"]
# Long enough that no answer comes in one piece, however busy the machine is.
TOKENS = 48
LENGTHS = ("--random-input-len", 12, "--random-output-len", TOKENS, "--random-vocab-size", VOCABULARY, "--ignore-eos")


def bench(url, *flags, seconds=60):
    done = run("bench", "serve", "--base-url", url, "--json", *flags, seconds=seconds)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def token(text="a", **more):
    return {"choices": [{"index": 0, "text": text, **more}]}


def usage(prompt=3, completion=3, cached=0):
    details = {"cached_tokens": cached}
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}}


def answer_after(*pauses):
    """Three tokens, each after a pause, then the usage."""

    def answer(handler, body):
        start_events(handler)
        for pause in pauses:
            time.sleep(pause)
            send_event(handler, token())
        send_event(handler, usage())
        send_event(handler, "[DONE]")

    return answer


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_figures_follow_from_the_requests(server, tmp_path, endpoint):  # noqa: F811
    result = tmp_path / "result.json"
    figures = bench(server.url + "/v1", "--num-prompts", 8, "--max-concurrency", 3, "--endpoint", endpoint, *LENGTHS,
                    "--goodput", "ttft:100000", "tpot:100000", "--save-result", result)
    saved = json.loads(result.read_text())
    assert saved["model_id"] == "m" and saved["completed"] == 8 and saved["failed"] == 0
    assert {name: saved[name] for name in figures} == figures
    assert saved["output_lens"] == [TOKENS] * 8 and saved["total_output_tokens"] == 8 * TOKENS
    if endpoint == "/v1/completions":
        assert saved["input_lens"] == [12] * 8
    assert saved["errors"] == [""] * 8
    tpots = [(latency - ttft) / (TOKENS - 1) for latency, ttft in zip(saved["latencies"], saved["ttfts"])]
    for name, values in (
        ("ttft", saved["ttfts"]),
        ("tpot", tpots),
        ("itl", [gap for gaps in saved["itls"] for gap in gaps]),
        ("e2el", saved["latencies"]),
    ):
        assert saved[f"mean_{name}_ms"] == pytest.approx(1000 * statistics.fmean(values))
        assert saved[f"median_{name}_ms"] == pytest.approx(1000 * statistics.median(values))
        assert saved[f"std_{name}_ms"] == pytest.approx(1000 * statistics.pstdev(values))
        assert saved[f"p99_{name}_ms"] == pytest.approx(1000 * statistics.quantiles(values, n=100, method="inclusive")[98])
    duration = saved["duration"]
    assert saved["request_throughput"] == saved["request_goodput"] == pytest.approx(8 / duration)
    assert saved["output_throughput"] == pytest.approx(8 * TOKENS / duration)
    assert saved["total_token_throughput"] == pytest.approx((8 * TOKENS + sum(saved["input_lens"])) / duration)
    assert max(start + latency for start, latency in zip(saved["start_times"], saved["latencies"])) <= duration


def test_a_shared_prefix_is_found_in_the_cache(server):  # noqa: F811
    flags = ("--num-prompts", 4, "--max-concurrency", 1, "--random-prefix-len", 64, *LENGTHS)
    figures = bench(server.url, *flags, "--seed", 1)
    assert figures["total_input_tokens"] == 4 * (64 + 12)
    assert figures["total_cached_tokens"] == 3 * 64
    # The same prompts again, and others.
    assert bench(server.url, *flags, "--seed", 1)["total_cached_tokens"] == 4 * 64
    assert bench(server.url, *flags, "--seed", 2)["total_cached_tokens"] == 3 * 64


def test_times_are_those_of_the_server(tmp_path):
    result = tmp_path / "result.json"
    with FakeServer(answer_after(0.2, 0.05, 0.05)) as fake:
        bench(fake.url, "--num-prompts", 2, "--random-input-len", 3, "--save-result", result)
    saved = json.loads(result.read_text())
    for i in range(2):
        assert 0.2 <= saved["ttfts"][i] < saved["latencies"][i] < 1
        assert saved["latencies"][i] >= 0.3
        assert len(saved["itls"][i]) == 2
        assert sum(saved["itls"][i]) == pytest.approx(saved["latencies"][i] - saved["ttfts"][i], abs=0.02)
    assert saved["request_goodput"] is None


def test_goodput_counts_who_meets_all_goals():
    slow = threading.Event()  # for every other request

    def answer(handler, body):
        start_events(handler)
        if slow.is_set():
            time.sleep(0.3)
        slow.clear() if slow.is_set() else slow.set()
        send_event(handler, token())
        send_event(handler, usage(completion=1))
        send_event(handler, "[DONE]")

    with FakeServer(answer) as fake:
        figures = bench(fake.url, "--num-prompts", 4, "--max-concurrency", 1, "--goodput", "ttft:150", "e2el:10000")
        assert figures["request_goodput"] == pytest.approx(2 / figures["duration"])
        assert figures["mean_tpot_ms"] is None


def gaps(times):
    return [after - before for before, after in zip(times, times[1:])]


def test_arrivals_keep_the_rate_and_the_bound(tmp_path):
    running, most = 0, 0
    lock = threading.Lock()

    def answer(handler, body):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        start_events(handler)
        time.sleep(0.05)
        with lock:
            running -= 1
        send_event(handler, token())
        send_event(handler, "[DONE]")

    result = tmp_path / "result.json"
    with FakeServer(answer) as fake:
        bench(fake.url, "--num-prompts", 20, "--request-rate", 20, "--save-result", result)
        starts = json.loads(result.read_text())["start_times"]
        assert starts == sorted(starts) and starts[-1] == pytest.approx(1, abs=0.2)
        assert statistics.pstdev(gaps(starts)) > 0.2 * statistics.fmean(gaps(starts))  # of a Poisson process both are equal
        bench(fake.url, "--num-prompts", 20, "--request-rate", 20, "--burstiness", 1e6, "--save-result", result)
        assert gaps(json.loads(result.read_text())["start_times"]) == pytest.approx([0.05] * 19, abs=0.04)
        most = 0
        bench(fake.url, "--num-prompts", 12, "--max-concurrency", 4)
        assert most == 4


def test_the_requests_are_those_of_the_flags(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with FakeServer(answer_after(0)) as fake:
        flags = ("--num-prompts", 2, "--max-concurrency", 1, "--random-input-len", 6, "--random-output-len", 9,
                 "--random-prefix-len", 2, "--random-vocab-size", 50)
        bench(fake.url, *flags, "--ignore-eos")
        (first_path, first), *both = fake.bodies
        assert first["max_tokens"] == 1 and len(first["prompt"]) == 6
        for path, body in both:
            assert path == "/v1/completions"
            assert body["model"] == "fake" and body["temperature"] == 0 and body["max_tokens"] == 9
            assert body["stream"] is True and body["stream_options"] == {"include_usage": True} and body["ignore_eos"] is True
            assert len(body["prompt"]) == 8 and all(0 <= token < 50 for token in body["prompt"])
        assert both[0][1]["prompt"][:2] == both[1][1]["prompt"][:2]
        assert both[0][1]["prompt"][2:] != both[1][1]["prompt"][2:]
        assert {headers["Authorization"] for headers in fake.headers} == {"Bearer secret"}
        fake.bodies.clear()
        bench(fake.url, *flags, "--endpoint", "/v1/chat/completions", "--model", "other")
        for path, body in fake.bodies[1:]:
            assert path == "/v1/chat/completions" and body["model"] == "other" and "ignore_eos" not in body
            assert body["max_completion_tokens"] == 9 and len(body["messages"][0]["content"].split()) == 8
        fake.bodies.clear()
        bench(fake.url, "--num-prompts", 20, "--random-input-len", 6, "--random-prefix-len", 2, "--random-range-ratio", 0.5)
        lengths = {len(body["prompt"]) - 2 for _, body in fake.bodies[1:]}
        assert len(lengths) > 2 and min(lengths) >= 3 and max(lengths) <= 9


def refuse_after(requests, status, body):
    """Answers so many requests, then refuses."""
    count = 0

    def answer(handler, request):
        nonlocal count
        count += 1
        if count <= requests:
            return answer_after(0)(handler, request)
        send_json(handler, body, status)

    return answer


def test_failures_are_counted_and_told():
    full = {"error": {"message": "the queue is full", "code": "queue_full"}}
    with FakeServer(refuse_after(3, 429, full)) as fake:
        figures = bench(fake.url, "--num-prompts", 5, "--max-concurrency", 1)
        assert figures["completed"] == 2 and figures["failed"] == 3
        assert figures["failures"] == {"HTTP 429: the queue is full": 3}
    with FakeServer(refuse_after(3, 429, full)) as fake:
        shown = run("bench", "serve", "--base-url", fake.url, "--num-prompts", 5, "--max-concurrency", 1)
        assert shown.returncode == 0
        assert "3 failed: HTTP 429: the queue is full" in shown.stdout and "TTFT" in shown.stdout
    with FakeServer(refuse_after(1, 500, "no JSON")) as fake:
        assert run("bench", "serve", "--base-url", fake.url, "--num-prompts", 2).returncode == 1


def events(*values, ends=True):
    def answer(handler, body):
        start_events(handler)
        for value in values:
            send_event(handler, value)
        if ends:
            send_event(handler, "[DONE]")

    return answer


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda handler, body: send_json(handler, {"error": {"message": "no such thing"}}, 404), "HTTP 404: no such thing"),
        (lambda handler, body: send_json(handler, {"choices": []}), "no stream of events"),
        (lambda handler, body: handler.wfile.write(b"\0garbage\r\n\r\n"), "not HTTP/1.1"),
        (lambda handler, body: None, "without an answer"),
        (events(token(), ends=False), "[DONE]"),
        (events(), "no answer in it"),
        (events("{"), "no JSON object"),
        (events("[1]"), "no JSON object"),
        (events({"choices": 5}, {"choices": [5]}, {"usage": 5}, {"choices": [{"delta": 1}], "usage": {"prompt_tokens": -1}},
                {"error": {"message": "out of luck"}}), "out of luck"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_all_requests_is_one_line(answer, words):
    with FakeServer(answer) as fake:
        assert_one_clear_line(run("bench", "serve", "--base-url", fake.url), words)


def test_wrong_flags_are_one_line():
    for flags, word in (
        (("--base-url", "https://a.example"), "HTTPS"),
        (("--base-url", "http://127.0.0.1:1"), "no connection to 127.0.0.1:1"),
        (("--base-url", "http://a", "--port", 5), "--base-url"),
        (("--request-rate", "0"), "--request-rate"),
        (("--request-rate", "nan"), "--request-rate"),
        (("--num-prompts", "0"), "--num-prompts"),
        (("--goodput", "ttft"), "ttft:500"),
        (("--goodput", "itl:5"), "ttft:500"),
        (("--goodput", "ttft:-5"), "ttft:500"),
        (("--endpoint", "/v1/embeddings"), "--endpoint"),
        (("--save-result", ""), "--save-result"),
        (("--frobnicate",), "--frobnicate"),
    ):
        assert_one_clear_line(run("bench", "serve", *flags), word)
    assert_one_clear_line(run("bench"), "MODEL")

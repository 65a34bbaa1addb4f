"""The chat page at `/` in a real browser, the system's Chromium, with the tiny model behind it."""
import contextlib
import json
import re
import shutil

import pytest
from playwright.sync_api import expect, sync_playwright
from tiny import FLAGS, TEMPLATE, TINY, figures, wait_until_idle

from quire_server import QuireServer

# Beside a browser, two threads of a server would wait for each other's turn on a small machine.
ONE_THREAD = ("--threads", 1)
CHAT = "**/v1/chat/completions"
FIELDS = {"temperature": 0.5, "top_p": 0.75, "top_k": 7, "min_p": 0.25, "repetition_penalty": 1.5, "max_tokens": 5}
HTML = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script><b>bold</b> &amp;"


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert path, "there is no Chromium; ./test installs it on Debian"
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not run as root.
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


expect.set_options(timeout=60_000)  # the machine may be busy


class Page:
    """One tab with the page, and what it has said to its console."""

    def __init__(self, browser, server):
        self.tab = browser.new_page()
        self.tab.set_default_timeout(30_000)
        self.complaints = []
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("console", lambda line: line.type in ("error", "warning") and self.complaints.append(line.text))
        self.tab.goto(server.url)

    def set(self, **fields):
        for name, value in fields.items():
            self.tab.fill(f"#{name}", str(value))

    def clear_fields(self):
        self.set(**{name: "" for name in (*FIELDS, "seed")})

    def send(self, text):
        """Sends a message and returns the body of the request that the page made of it."""
        with self.tab.expect_request(CHAT) as request:
            self.tab.fill("#input", text)
            self.tab.press("#input", "Enter")
        return request.value.post_data

    def ask(self, text):
        body = json.loads(self.send(text))
        self.finished()
        return body

    def finished(self):
        expect(self.tab.locator("#send")).to_have_text("Send")

    def texts(self, role):
        return self.tab.locator(f".message.{role}").all_text_contents()

    def ignore_the_end(self):
        """Lets answers go on to the end of the context."""
        more = ', "ignore_eos": true}'
        self.tab.route(CHAT, lambda route: route.continue_(post_data=route.request.post_data[:-1] + more))

    def answer_with(self, *events, status=200):
        """The next answers, in place of the server's."""
        if status != 200:
            body = json.dumps(events[0])
        else:
            body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        kind = "text/event-stream" if status == 200 else "application/json"
        self.tab.route(CHAT, lambda route: route.fulfill(status=status, content_type=kind, body=body))


@pytest.fixture(scope="module")
def server():
    with QuireServer(TINY, *FLAGS, *ONE_THREAD) as running:
        yield running
        wait_until_idle(running)


@contextlib.contextmanager
def opened(browser, server):
    page = Page(browser, server)
    page.clear_fields()
    yield page
    page.tab.close()
    assert page.complaints == []
    wait_until_idle(server)


@pytest.fixture
def page(browser, server):
    with opened(browser, server) as page:
        yield page


@pytest.fixture(scope="module")
def endless_server(tmp_path_factory):
    """The tiny model with a context so long that an answer to its end takes many seconds."""
    folder = tmp_path_factory.mktemp("endless") / "model"
    shutil.copytree(TINY, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1 << 18}))
    flags = ("--chat-template", TEMPLATE, "--kv-cache-memory-bytes", 1 << 30)
    with QuireServer(folder, *flags, *ONE_THREAD) as running:
        yield running
        wait_until_idle(running)


@pytest.fixture
def endless_page(browser, endless_server):
    with opened(browser, endless_server) as page:
        yield page


def test_it_says_what_it_serves(page, server):
    length = json.loads(server.request("GET", "/v1/models")[2])["data"][0]["max_model_len"]
    expect(page.tab.locator("#model")).to_have_text(f"m, {length} tokens")
    page.tab.reload()
    expect(page.tab.locator("#input")).to_be_focused()


def test_an_answer_is_what_the_api_says(page, server):
    page.set(temperature=0, max_tokens=24)
    sent = page.ask("Hello there")
    assert sent["stream"] is True and sent["messages"] == [{"role": "user", "content": "Hello there"}]
    whole = server.post("/v1/chat/completions", {"messages": sent["messages"], "temperature": 0, "max_tokens": 24})
    assert page.texts("assistant") == [whole["choices"][0]["message"]["content"]] != [""]
    assert f"{whole['usage']['completion_tokens']} tokens" in page.tab.text_content("#figures")
    assert page.texts("user") == ["Hello there"] and page.tab.input_value("#input") == ""


def at_least(characters):
    return re.compile(f".{{{characters}}}", re.DOTALL)


def test_an_answer_grows_while_it_is_written_and_can_be_stopped(endless_page, endless_server):
    page = endless_page
    page.ignore_the_end()
    page.set(temperature=0)
    page.send("Go on")
    expect(page.tab.locator("#send")).to_have_text("Stop")
    expect(page.tab.locator(".message.assistant")).to_have_text(at_least(6))
    [begun] = page.texts("assistant")
    expect(page.tab.locator(".message.assistant")).to_have_text(at_least(len(begun) + 1))
    assert figures(endless_server)["vllm:num_requests_running"] == 1
    page.tab.click("#send")
    page.finished()
    wait_until_idle(endless_server)
    [part] = page.texts("assistant")
    assert part.startswith(begun) and len(part) > len(begun)
    assert page.texts("error") == [] and page.tab.text_content("#figures") == ""
    page.tab.unroute(CHAT)
    page.set(max_tokens=2)
    assert page.ask("And now")["messages"][1] == {"role": "assistant", "content": part}


def test_a_chat_remembers_until_a_new_one_begins(page):
    page.set(temperature=0, max_tokens=6)
    page.ask("one")
    [first] = page.texts("assistant")
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": first}, {"role": "user", "content": "two"}]
    assert page.ask("two")["messages"] == turns
    page.set(system="Be brief.")
    assert page.ask("three")["messages"][0] == {"role": "system", "content": "Be brief."}
    page.tab.click("#clear")
    assert page.tab.locator(".message").count() == 0
    page.set(system="")
    assert page.ask("four")["messages"] == [{"role": "user", "content": "four"}]


def test_enter_sends_and_shift_enter_breaks_the_line(page):
    page.set(max_tokens=2)
    page.tab.fill("#input", "a")
    page.tab.press("#input", "Shift+Enter")
    page.tab.type("#input", "b")
    with page.tab.expect_request(CHAT) as request:
        page.tab.click("#send")
    assert json.loads(request.value.post_data)["messages"] == [{"role": "user", "content": "a\nb"}]
    page.finished()
    page.tab.fill("#input", "  \n ")
    page.tab.press("#input", "Enter")
    assert len(page.texts("user")) == 1


def test_a_new_chat_ends_the_answer_of_the_old_one(endless_page, endless_server):
    page = endless_page
    page.ignore_the_end()
    page.send("Go on")
    expect(page.tab.locator(".message.assistant")).to_have_text(at_least(6))
    assert figures(endless_server)["vllm:num_requests_running"] > 0
    page.tab.click("#clear")
    wait_until_idle(endless_server)
    page.finished()
    page.tab.unroute(CHAT)
    page.set(max_tokens=2)
    assert page.ask("New")["messages"] == [{"role": "user", "content": "New"}]
    assert page.texts("user") == ["New"] and len(page.texts("assistant")) == 1


def test_each_control_is_a_field_of_the_request(page):
    for names in ((), *((name,) for name in FIELDS), tuple(FIELDS)):
        page.clear_fields()
        page.set(**{"max_tokens": 3, **{name: FIELDS[name] for name in names}})
        sent = page.ask("hi")
        expected = {"max_tokens": 3, **{name: FIELDS[name] for name in names}}
        assert {name: sent[name] for name in FIELDS if name in sent} == expected
        assert "seed" not in sent
        assert re.search(r"seed \d+", page.tab.text_content("#figures"))


def test_a_seed_keeps_all_its_digits_and_repeats_the_answer(page):
    page.set(seed=18446744073709551615, max_tokens=8, temperature=1)
    assert '"seed":18446744073709551615' in page.send("hi")
    page.finished()
    page.tab.click("#clear")
    page.set(seed=18446744073709551614)
    page.ask("hi")
    other = page.texts("assistant")
    page.tab.click("#clear")
    page.set(seed=18446744073709551615)
    page.ask("hi")
    again = page.texts("assistant")
    page.tab.click("#clear")
    page.ask("hi")
    assert page.texts("assistant") == again != other


def test_what_the_server_refuses_is_shown(page):
    page.set(max_tokens=10**8)
    page.ask("too much")
    [error] = page.texts("error")
    assert "max_tokens" in error
    # The browser itself reports the status.
    assert all("400" in line for line in page.complaints) and len(page.complaints) == 1
    page.complaints.clear()
    # The question is back, and is no turn of the chat.
    assert page.tab.input_value("#input") == "too much"
    assert page.texts("user") == [] and page.texts("assistant") == []
    page.set(max_tokens=2)
    assert page.ask("less")["messages"] == [{"role": "user", "content": "less"}]
    assert len(page.texts("assistant")) == 1


def test_an_error_in_the_middle_of_an_answer_is_shown(page):
    piece = {"choices": [{"delta": {"role": "assistant", "content": "half of"}}]}
    page.answer_with(piece, {"error": {"message": "the step failed", "type": "server_error"}})
    page.ask("hi")
    assert page.texts("assistant") == ["half of"]
    assert page.texts("error") == ["the step failed"]


def test_a_server_that_is_gone_is_an_error_too(page):
    page.tab.route(CHAT, lambda route: route.abort())
    page.ask("hi")
    assert len(page.texts("error")) == 1
    assert all("ERR_FAILED" in line for line in page.complaints)
    page.complaints.clear()


def test_html_is_shown_as_text_and_not_run(page):
    page.answer_with({"choices": [{"delta": {"content": HTML[:20]}}]}, {"choices": [{"delta": {"content": HTML[20:]}}]})
    page.ask(HTML)
    page.tab.unroute(CHAT)
    page.answer_with({"error": {"message": HTML}})
    page.ask("and as an error")
    for role in ("user", "assistant", "error"):
        assert page.texts(role)[0] == HTML
    assert page.tab.locator(".message *").count() == 0
    assert page.tab.evaluate("window.pwned") is None
    assert page.complaints == []


def test_a_key_is_asked_for_and_kept_for_the_requests(browser):
    with QuireServer(TINY, *FLAGS, *ONE_THREAD, "--api-key", "sesame") as keyed:
        page = Page(browser, keyed)
        page.clear_fields()
        page.set(max_tokens=2)
        page.ask("hi")
        assert "API key" in page.texts("error")[0]
        page.set(key="sesame")
        page.tab.press("#key", "Tab")
        expect(page.tab.locator("#model")).to_contain_text("m, ")
        page.ask("hi")
        assert len(page.texts("assistant")) == 1
        assert all("401" in line for line in page.complaints)
        page.tab.close()
        wait_until_idle(keyed)

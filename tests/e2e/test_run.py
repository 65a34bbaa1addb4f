"""quire run: a chat on a terminal (a pty) and one answer for pipes; its answers are the server's."""
import re
import subprocess

import pytest
from conftest import real_model
from terminal import Terminal, plain
from test_program import assert_one_clear_line, run
from tiny import FLAGS, TINY

from quire_server import QuireServer, quire_binary

GREEDY = ("--set", "temperature=0", "--set", "max_tokens=12")
# Begins answers with its reasoning, which ends at once or never, whatever the model writes.
THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}<think>{# </think> #}"


def ask(text, *flags):
    command = [str(quire_binary()), "run", str(TINY), *map(str, FLAGS), *map(str, flags)]
    return subprocess.run(command, input=text, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def server_answers():
    """The server's answer to messages, with parameters."""
    with QuireServer(TINY, *FLAGS) as server:

        def answer(messages, **parameters):
            body = {"messages": messages, **parameters}
            return server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]

        yield answer


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def on_screen(text):
    """As a terminal gets it: no control characters but line breaks and tabs."""
    return "".join(c if c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160) else "\ufffd" for c in text)


def test_a_pipe_gets_one_answer(server_answers):
    for flags, parameters in (
        (GREEDY, {"temperature": 0, "max_tokens": 12}),
        (("--set", "seed=5", "--set", "max_tokens=12"), {"seed": 5, "max_tokens": 12}),
    ):
        done = ask(b"hello there\n", *flags)
        assert done.returncode == 0 and done.stderr == b""
        assert done.stdout.decode() == server_answers([user("hello there")], **parameters) + "\n"


def test_the_prompt_of_the_command_line_goes_behind_the_pipe(server_answers):
    parameters = {"temperature": 0, "max_tokens": 12}
    assert ask(b"", "a prompt", *GREEDY).stdout.decode() == server_answers([user("a prompt")], **parameters) + "\n"
    both = ask(b"a text\n", "a prompt", *GREEDY, "--system", "be brief")
    messages = [{"role": "system", "content": "be brief"}, user("a text\n\na prompt")]
    assert both.stdout.decode() == server_answers(messages, **parameters) + "\n"


def test_verbose_says_tokens():
    done = ask(b"hello", "--set", "temperature=0", "--set", "ignore_eos=true", "--set", "max_tokens=400", "--verbose")
    assert b"answer 400 tokens" in done.stderr and b"tokens/s" in done.stderr


def test_what_is_wrong_is_one_line():
    for flags, word in (
        (("--set", "temperature"), "NAME=VALUE"),
        (("--set", "temperature=-1"), "temperature must be a number"),
        (("--set", "model=other"), "no parameter"),
        (("--set", "min_tokens=999999"), "min_tokens"),
        ((), "no prompt"),
    ):
        assert_one_clear_line(run("run", TINY, *FLAGS, *flags, *(("x",) if flags else ())), word)
    assert_one_clear_line(run("run"), "MODEL")
    assert_one_clear_line(run("run", TINY, "x"), "chat template")
    assert_one_clear_line(run("run", "no/such/model", "x"), "no/such/model")


class Conversation:
    """What a person at `quire run` types, and reads between two prompts."""

    def __init__(self, tmp_path, *flags):
        self.terminal = Terminal("run", TINY, *FLAGS, *flags, env={"XDG_STATE_HOME": str(tmp_path)})
        self.terminal.read_until(">>> ")

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.terminal.__exit__(*failure)

    def say(self, *lines):
        """Types lines, and returns what comes between the last one and the next prompt."""
        for line in lines[:-1]:
            self.terminal.type(line + "\r")
            self.terminal.read_until("... ")
        self.terminal.type(lines[-1] + "\r")
        self.terminal.read_until("\n")
        return plain(self.terminal.read_until(">>> ")).removesuffix(">>> ").removesuffix("\n")


def test_a_conversation_goes_on(tmp_path, server_answers):
    parameters = {"temperature": 0, "max_tokens": 12}
    with Conversation(tmp_path, *GREEDY) as chat:
        first = server_answers([user("one")], **parameters)
        assert chat.say("one") == on_screen(first)
        messages = [user("one"), said(first), user("two")]
        assert chat.say("two") == on_screen(server_answers(messages, **parameters))
        chat.say("/clear")
        assert chat.say("two") == on_screen(server_answers([user("two")], **parameters))
        chat.say("/clear")
        chat.say("/system be brief")
        messages = [{"role": "system", "content": "be brief"}, user("two")]
        assert chat.say("two") == on_screen(server_answers(messages, **parameters))
        chat.say("/system")
        chat.say("/clear")
        chat.say("/set temperature 1")
        chat.say("/set seed 3")
        assert chat.say("/set").split("\n") == ["max_tokens 12", "seed 3", "temperature 1"]
        assert chat.say("two") == on_screen(server_answers([user("two")], temperature=1, seed=3, max_tokens=12))
        chat.terminal.type("/exit\r")
        assert chat.terminal.wait() == 0


def test_lines_belong_together(tmp_path, server_answers):
    parameters = {"temperature": 0, "max_tokens": 12}
    expected = on_screen(server_answers([user("one\ntwo\n\nthree")], **parameters))
    with Conversation(tmp_path, *GREEDY) as chat:
        assert chat.say('"""one', "two", "", 'three"""') == expected
        chat.say("/clear")
        assert chat.say("one\\", "two\\", "\\", "three") == expected


def test_lines_are_edited_and_remembered(tmp_path, server_answers):
    parameters = {"temperature": 0, "max_tokens": 12}
    expected = on_screen(server_answers([user("größer")], **parameters))
    with Conversation(tmp_path, *GREEDY) as chat:
        # Over a character of two bytes and back: left twice, backspace, another letter, to the end.
        assert chat.say("größxer\x1b[D\x1b[D\x7f\x05") == expected
        chat.say("/clear")
        assert chat.say("\x1b[A\x1b[A") == expected
        chat.terminal.type("\x04")
        assert chat.terminal.wait() == 0
    assert (tmp_path / "quire" / "history").stat().st_mode & 0o077 == 0
    with Conversation(tmp_path, *GREEDY) as later:
        assert later.say("\x1b[A") == expected


def test_commands_that_are_wrong_are_told(tmp_path):
    with Conversation(tmp_path) as chat:
        for line, word in (
            ("/frobnicate", "/help"),
            ("/set temperature hot", "temperature must be"),
            ("/set model other", "no parameter"),
            ("/help", "/system TEXT"),
        ):
            assert word in chat.say(line)
        chat.say("/set min_tokens 1000")
        assert "min_tokens" in chat.say("hello")


def test_ctrl_c_ends_the_answer_and_not_the_program(tmp_path):
    # A model that is not done before the key is pressed.
    flags = ("--kv-cache-memory-bytes", 200_000_000, "--set", "ignore_eos=true", "--verbose")
    state = {"XDG_STATE_HOME": str(tmp_path)}
    with Terminal("run", real_model("smollm2"), *flags, env=state) as terminal:
        terminal.read_until(">>> ")
        terminal.type("Tell a story.\r")
        terminal.read_until("\n")
        terminal.read_until(" ")  # of the answer
        terminal.type("\x03")
        tokens = int(re.search(r"answer (\d+) tokens", plain(terminal.read_until(">>> ")))[1])
        assert 0 < tokens < 2000
        # At the prompt it gives a line up.
        terminal.type("half a line\x03")
        terminal.read_until("^C")
        terminal.read_until(">>> ")
        terminal.type("\x03")
        assert "/exit" in terminal.read_until(">>> ")
        terminal.type("/set max_tokens 3\r")
        terminal.read_until(">>> ")
        terminal.type("Go on.\r")
        assert "answer 3 tokens" in terminal.read_until(">>> ")
        terminal.type("/exit\r")
        assert terminal.wait() == 0


def test_reasoning_is_dim_and_left_out_of_pipes(tmp_path):
    flags = ("--kv-cache-memory-bytes", 16 << 20, "--chat-template", THINKING, *GREEDY)
    piped = subprocess.run([str(quire_binary()), "run", str(TINY), *map(str, flags), "hi"], stdin=subprocess.DEVNULL,
                           capture_output=True, timeout=60)  # fmt: skip
    assert piped.returncode == 0 and piped.stdout == b"\n"
    with Terminal("run", TINY, *flags, env={"XDG_STATE_HOME": str(tmp_path)}) as terminal:
        terminal.read_until(">>> ")
        terminal.type("hi\r")
        terminal.read_until("\n")
        shown = terminal.read_until(">>> ")
        assert re.match(r"\r?\x1b\[2m[^\x1b]+\x1b\[0m", shown), shown

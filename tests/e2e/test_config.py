"""--config: a YAML file of flags, under the command line."""
import pytest
from test_program import assert_one_clear_line, run
from tiny import FLAGS, TINY

from quire_server import QuireServer


def config(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(tmp_path, text, *words, flags=()):
    assert_one_clear_line(run("serve", TINY, "--config", config(tmp_path, text), *flags), *words)


def test_a_file_says_what_flags_say(tmp_path):
    path = config(tmp_path, """
# A comment.
--max-model-len: 96
max_num_seqs: 3
"block-size": 16
no-enable-prefix-caching: true
api_key: [one, "two"]
check-integrity: true
served-model-name: [a, b]
hf-overrides: '{"max_position_embeddings": 128}'
chat-template: |
  {{ messages[0].content }}
""")  # fmt: skip
    with QuireServer(TINY, "--config", path, "--kv-cache-memory-bytes", 1 << 20) as server:
        assert "prefix cache: off" in server.log()
        assert server.request("GET", "/v1/models")[0] == 401
        for key in ("one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.request("GET", "/v1/models", headers=headers)[0] == 200
        # The command line has its own name for the model.
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        assert server.post("/v1/chat/completions", body, headers=headers)["model"] == "m"
        assert server.request("GET", "/v1/models/a", headers=headers)[0] == 404
        assert "96 a request" in server.log()


def test_the_command_line_goes_first(tmp_path):
    path = config(tmp_path, "enable-prefix-caching: false\nmax-model-len: 96\nport: 1\n")
    with QuireServer(TINY, *FLAGS, "--config", path, "--enable-prefix-caching", "--max_model_len", 64) as server:
        assert "prefix cache: off" not in server.log() and "64 a request" in server.log()
    with QuireServer(TINY, *FLAGS, "--config", path) as server:
        assert "prefix cache: off" in server.log() and "96 a request" in server.log()


def test_the_model_may_stand_in_the_file(tmp_path):
    path = config(tmp_path, f"model: {TINY}\nprompt: hello\nset: [temperature=0, max_tokens=4]\nchat-template: '{FLAGS[1]}'\n")
    shown = run("run", "--config", path)
    assert shown.returncode == 0, shown.stderr
    other = run("run", TINY, "hello", *FLAGS, "--set", "temperature=0", "--set", "max_tokens=4")
    assert shown.stdout == other.stdout
    path = config(tmp_path, "model: no/such/model\n")
    assert_one_clear_line(run("serve", "--config", path), "no/such/model")
    assert_one_clear_line(run("serve", "no/model/either", "--config", path), "no/model/either")


@pytest.mark.parametrize(
    "text, words",
    [
        ("frobnicate: 1\n", ("line 1", '"frobnicate" is no flag of quire serve')),
        ("port: 0\nconfig: x.yaml\n", ("line 2", '"config" is no flag')),
        ("system: x\n", ('"system" is no flag',)),
        ("port: eighty\n", ("config.yaml", "--port", "not 'eighty'")),
        ("port: 08000\n", ("--port", "not '08000'")),
        ("port: 1.5\n", ("--port",)),
        ("port: [1, 2]\n", ("line 1", '"port" takes one value')),
        ("port:\n", ("port has no value",)),
        ("port: ''\n", ("port has no value",)),
        ("port: ~\n", ("port has no value",)),
        ("api-key: []\n", ("api-key has no value",)),
        ('host: "a\\0b"\n', ("host has no value",)),
        ("check-integrity: 1\n", ("check-integrity", "true or false", '"1"')),
        ("check-integrity: yes\n", ("true or false",)),
        ("hf-overrides: {a: 1}\n", ("line 1", "hf-overrides", "nested")),
        ("api-key: [[a]]\n", ("api-key", "nested")),
        ("api-key:\n  - a\n  - b: c\n", ("line 3", "api-key", "nested")),
        ("port: 1\nport: 2\n", ("line 2", "port stands there twice")),
        ("max-model-len: 1\n--max_model_len: 2\n", ("line 2", "max-model-len stands there twice")),
        ("a: &x 1\nb: *x\n", ("line 1", "anchors")),
        ("port: !!int 1\n", ("line 1", "tags")),
        ("port: 1\n---\nport: 2\n", ("second document",)),
        ("8000\n", ("names and values",)),
        ("- port: 1\n", ("names and values",)),
        ("? [a]\n: b\n", ("names and values",)),
        ("port: 1\n  host: 2\n", ("config.yaml", "line 2")),
        ("port: 'open\n", ("config.yaml", "line")),
        ("\x00\x01", ("config.yaml",)),
        ("[" * 20000, ("config.yaml",)),
        ("{a: " * 10000, ("config.yaml",)),
        ("a: " * 20000, ("config.yaml",)),
        ("#" * ((64 << 10) + 1), ("65536 bytes",)),
        ("", ("is empty",)),
        (b"\xff\xfe\x00\xd8: 1\n", ("config.yaml",)),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, text, words):
    refused(tmp_path, text, *words)


def test_a_file_that_is_none(tmp_path):
    for path, word in ((tmp_path / "none.yaml", "is no file"), (tmp_path, "not a regular file"), ("/dev/zero", "not a regular")):
        assert_one_clear_line(run("serve", TINY, "--config", path), "--config", word)


def test_a_comment_alone_changes_nothing(tmp_path):
    with QuireServer(TINY, *FLAGS, "--config", config(tmp_path, "# nothing\n")):
        pass

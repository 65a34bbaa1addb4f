"""The server behind TLS: the same answers, the same care for clients that leave, stall or send nonsense."""
import json
import signal
import socket
import ssl
import subprocess
import time
import warnings

import httpx2
import openai
import pytest
from test_program import assert_one_clear_line, run
from tiny import FLAGS, TINY, wait_until_idle

from quire_server import QuireServer

BODY = {"prompt": [3, 4, 5], "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Files:
    """A certificate that signs itself, for 127.0.0.1, and its key."""

    def __init__(self, folder, name="server"):
        self.certificate, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", 2, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", self.key, "-out", self.certificate)  # fmt: skip

    def flags(self):
        return ("--ssl-certfile", self.certificate, "--ssl-keyfile", self.key)

    def context(self):
        return ssl.create_default_context(cafile=self.certificate)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(files):
    with QuireServer(TINY, *FLAGS, *files.flags(), tls=files.context()) as running:
        yield running
        wait_until_idle(running)


def events(reply):
    """The JSON of each event, and whether the stream ended as it should."""
    lines = [line.removeprefix("data: ") for line in reply.decode().split("\n\n") if line]
    return [json.loads(line) for line in lines[:-1]], lines[-1] == "[DONE]"


def test_answers_are_those_of_plain_http(server):
    with QuireServer(TINY, *FLAGS) as plain:
        want = plain.post("/v1/completions", BODY)
        assert server.post("/v1/completions", BODY)["choices"] == want["choices"]
        _, _, reply = server.request("POST", "/v1/completions", BODY | {"stream": True})
        chunks, done = events(reply)
        assert done
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == want["choices"][0]["text"]


def test_one_connection_serves_many_requests_and_long_ones(server):
    connection = server.connection()
    for size in (1, 60_000, 2_000_000):  # of several records, and of more than a socket holds
        body = json.dumps(BODY | {"user": "x" * size})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        reply.read()
    connection.request("POST", "/v1/completions", b"x" * (17 << 20), {"Content-Type": "application/json"})
    assert connection.getresponse().status == 413
    connection.close()


def test_the_official_client(server, files):
    transport = httpx2.Client(verify=files.context())
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=transport)
    reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
    assert reply.usage.completion_tokens >= 1


def test_a_client_that_leaves_is_noticed(server):
    for polite in (True, False):
        connection = server.connection()
        body = json.dumps(BODY | {"stream": True, "max_tokens": 400, "n": 8})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.readline().startswith(b"data:")
        if polite:
            connection.sock.settimeout(5)
        else:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        reply.close()
        connection.close()
        wait_until_idle(server, 5)


def test_what_is_no_tls_is_dropped_and_others_do_not_notice(server):
    silent = socket.create_connection(("127.0.0.1", server.port))
    start = time.monotonic()
    for nonsense in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 70_000, b"\x80"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=15) as plain:
            try:
                plain.sendall(nonsense)
                plain.shutdown(socket.SHUT_WR)
                while plain.recv(65536):
                    pass
            except OSError:
                pass
    old = ssl.create_default_context()
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings(action="ignore"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.raises(OSError):  # ssl.SSLError is one
        old.wrap_socket(socket.create_connection(("127.0.0.1", server.port)))
    assert server.post("/v1/completions", BODY)["choices"]
    silent.settimeout(20)
    assert silent.recv(1) == b""  # a header's time for the handshake, and no more
    assert 5 < time.monotonic() - start < 20


def test_draining_lets_an_answer_end(files):
    with QuireServer(TINY, *FLAGS, *files.flags(), tls=files.context()) as server:
        waiting = socket.create_connection(("127.0.0.1", server.port))  # in its handshake
        connection = server.connection()
        body = json.dumps(BODY | {"stream": True, "max_tokens": 300})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        first = reply.readline()
        server.process.send_signal(signal.SIGTERM)
        chunks, done = events(first + reply.read())
        assert done and chunks[-1]["choices"][0]["finish_reason"] == "length"
        start = time.monotonic()
        assert server.process.wait(20) == 0
        assert time.monotonic() - start < 8
        waiting.close()


def test_files_that_cannot_be_used(files, tmp_path):
    other = Files(tmp_path, "other")
    nonsense, locked = tmp_path / "nonsense.pem", tmp_path / "locked.key"
    nonsense.write_bytes(b"-----BEGIN CERTIFICATE-----\n!\n\0")
    openssl("rsa", "-aes256", "-passout", "pass:secret", "-in", files.key, "-out", locked)
    for certificate, key, words in (
        (tmp_path / "none.pem", files.key, ("--ssl-certfile", "none.pem")),
        (tmp_path, files.key, ("--ssl-certfile",)),
        (nonsense, files.key, ("--ssl-certfile", "PEM")),
        (files.certificate, tmp_path / "none.key", ("--ssl-keyfile", "none.key")),
        (files.certificate, nonsense, ("--ssl-keyfile", "PEM")),
        (files.certificate, other.key, ("--ssl-keyfile", "of the certificate")),
        (files.certificate, locked, ("--ssl-keyfile", "password")),
    ):
        refused = run("serve", TINY, "--port", 0, "--ssl-certfile", certificate, "--ssl-keyfile", key)
        assert_one_clear_line(refused, *words)
    assert_one_clear_line(run("serve", TINY, "--port", 0, "--ssl-certfile", files.certificate), "--ssl-keyfile")
    assert_one_clear_line(run("serve", TINY, "--port", 0, "--ssl-keyfile", files.key), "--ssl-keyfile", "--ssl-certfile")


def test_one_file_may_hold_both(files, tmp_path):
    both = tmp_path / "both.pem"
    both.write_bytes(files.key.read_bytes() + files.certificate.read_bytes())
    with QuireServer(TINY, *FLAGS, "--ssl-certfile", both, tls=files.context()) as server:
        assert server.post("/v1/completions", BODY)["choices"]

"""A `quire serve` of a test's own: started on a free port of the loopback, asked over HTTP, stopped by SIGTERM.

The server's output goes to a file, and its end is shown when the server does not start or does not stop cleanly.
"""
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def quire_binary():
    return Path(os.environ.get("QUIRE_BINARY", ROOT / "build" / "release" / "quire"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class HttpError(Exception):
    """A reply with another status than 200; `body` is parsed if it is JSON."""

    def __init__(self, status, body):
        super().__init__(f"HTTP {status}: {str(body)[:400]}")
        self.status = status
        self.body = body


class QuireServer:
    def __init__(self, model, *flags, name="m", start_seconds=120, env=None, tls=None):
        """`tls`: the client's ssl.SSLContext, where the flags make the server speak TLS."""
        self._tls = tls
        self.port = free_port()
        self.name = name
        self._start_seconds = start_seconds
        self._command = [str(quire_binary()), "serve", str(model), "--host", "127.0.0.1", "--port", str(self.port)]
        self._command += ["--served-model-name", name, *map(str, flags)]
        self._env = {**os.environ, **(env or {})}
        self._log = tempfile.NamedTemporaryFile(mode="w+", prefix="quire-", suffix=".log")
        self.process = None

    @property
    def url(self):
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self):
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, env=self._env
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def __exit__(self, kind, value, trace):
        code = self.stop()
        if kind is None:
            assert code == 0, f"the server ended with code {code} after SIGTERM:\n{self.log()}"

    def stop(self, seconds=30):
        """Ends the server as an operator would; its exit code, or None where it had to be killed."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def log(self):
        return Path(self._log.name).read_text(errors="replace")[-4000:]

    def _wait_until_ready(self):
        end = time.monotonic() + self._start_seconds
        while time.monotonic() < end:
            code = self.process.poll()
            if code is not None:
                raise RuntimeError(f"{' '.join(self._command)} ended with code {code}:\n{self.log()}")
            try:
                if self.request("GET", "/health", timeout=5)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"the server was not ready after {self._start_seconds} s:\n{self.log()}")

    def connection(self, timeout=300):
        if self._tls:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=300):
        """(status, headers, bytes) of one exchange on a connection of its own. `body` is bytes, or a value sent as JSON."""
        connection = self.connection(timeout)
        try:
            headers = dict(headers or {})
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
                headers.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    def post(self, path, body, **options):
        """The JSON of a 200 reply; HttpError for any other status."""
        status, _, text = self.request("POST", path, body, **options)
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if status != 200:
            raise HttpError(status, value)
        return value

    def metrics(self):
        """{name with labels: value} of every sample of /metrics."""
        status, _, text = self.request("GET", "/metrics")
        assert status == 200, text
        samples = {}
        for line in text.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

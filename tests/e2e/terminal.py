"""A program on a terminal of its own: what a person types, and what stands on the screen."""
import os
import pty
import re
import select
import subprocess
import time

from quire_server import quire_binary

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    def __init__(self, *arguments, env=None):
        self._screen = b""
        master, slave = pty.openpty()
        self._fd = master
        self.process = subprocess.Popen(
            [str(quire_binary()), *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave, close_fds=True,
            start_new_session=True, preexec_fn=lambda: os.close(os.open(os.ttyname(slave), os.O_RDWR)),
            env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})},
        )  # fmt: skip
        os.close(slave)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._fd)

    def type(self, text):
        os.write(self._fd, text.encode())

    def read_until(self, text, seconds=60):
        """What has come since the last call, up to and with `text`; without `text`, until the program ends."""
        end = time.monotonic() + seconds
        wanted = None if text is None else text.encode()
        while wanted is None or wanted not in self._screen:
            assert time.monotonic() < end, f"no {text!r} in {self._screen!r}"
            if not select.select([self._fd], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                data = b""  # so a terminal says that its other end is closed
            if not data:
                break
            self._screen += data
        assert wanted is None or wanted in self._screen, f"ended without {text!r}: {self._screen!r}"
        cut = len(self._screen) if wanted is None else self._screen.index(wanted) + len(wanted)
        read, self._screen = self._screen[:cut], self._screen[cut:]
        return read.decode()

    def wait(self, seconds=20):
        """The exit code; what still comes is read, so that the program can write it."""
        self.read_until(None, seconds)
        return self.process.wait(seconds)


def plain(text):
    """Without colours and cursor movements."""
    return ESCAPES.sub("", text).replace("\r", "")

"""A server whose answers a test writes byte by byte, for commands that are clients."""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeServer:
    """`answer(handler, body)` writes what it likes on `handler.wfile`; `bodies` keeps what was posted."""

    def __init__(self, answer):
        fake = self
        self.bodies = []
        self.headers = []

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def do_GET(self):
                send_json(self, {"data": [{"id": "fake"}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.bodies.append((self.path, body))
                fake.headers.append(dict(self.headers))
                answer(self, body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self._server.shutdown()
        self._server.server_close()


def send_json(handler, value, status=200):
    text = json.dumps(value).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text)


def start_events(handler):
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()


def send_event(handler, value):
    data = value if isinstance(value, str) else json.dumps(value)
    handler.wfile.write(f"data: {data}\n\n".encode())
    handler.wfile.flush()

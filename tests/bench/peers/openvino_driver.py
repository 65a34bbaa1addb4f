#!/usr/bin/env python3
"""OpenVINO GenAI's continuous batching in this process: its offline cells, or a small server for the same load as others.

usage: openvino_driver.py MODEL THREADS CELLS          prints {cell: tokens a second}
       openvino_driver.py --serve MODEL THREADS PORT   /health and streamed /v1/completions over token ids
"""
import itertools
import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import cells
import numpy
import openvino
import openvino_genai

CACHE_GB = 4


def pipeline(path, threads, prefix_caching):
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.enable_prefix_caching = prefix_caching
    scheduler.max_num_seqs = 64
    # Left as it is for servers, where streams wait for prompts; a prompt alone is fastest in one piece.
    if not prefix_caching:
        scheduler.max_num_batched_tokens = 16384
    return openvino_genai.ContinuousBatchingPipeline(
        path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    )


def settings(generated):
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = generated
    config.ignore_eos = True
    config.do_sample = False
    return config


def tokens_of(handle):
    """How many tokens came since the last look; reading waits, so only what is there is read."""
    return sum(len(output.generated_ids) for output in handle.read().values()) if handle.can_read() else 0


def load(path, threads, most_requests, longest):
    pipe, ids = pipeline(path, threads, prefix_caching=False), itertools.count()

    def run(prompts, generated):
        handles, counts = {}, {}

        def add(index, prompt, generated):
            handles[index] = pipe.add_request(next(ids), openvino.Tensor(numpy.array([prompt])), settings(generated))
            counts[index] = 0

        def step():
            pipe.step()
            for index, handle in handles.items():
                counts[index] += tokens_of(handle)
            return {index: count for index, count in counts.items() if count}

        return cells.stepped(add, step, prompts, generated)

    return run


class Service:
    """One thread steps the pipeline; each request has a queue of token counts, ended by None."""

    def __init__(self, path, threads):
        self._pipe = pipeline(path, threads, prefix_caching=True)
        self._arrived, self._ids, self._active = queue.Queue(), itertools.count(), {}
        threading.Thread(target=self._loop, daemon=True).start()

    def ask(self, prompt, generated):
        out = queue.Queue()
        self._arrived.put((prompt, generated, out))
        return out

    def _admit(self, wait):
        try:
            prompt, generated, out = self._arrived.get(block=wait)
        except queue.Empty:
            return False
        tensor = openvino.Tensor(numpy.array([prompt]))
        self._active[self._pipe.add_request(next(self._ids), tensor, settings(generated))] = [out, generated]
        return True

    def _loop(self):
        while True:
            while self._admit(wait=not self._active):
                pass
            self._pipe.step()
            for handle, entry in list(self._active.items()):
                count = tokens_of(handle)
                entry[1] -= count
                for _ in range(count):
                    entry[0].put(1)
                if entry[1] <= 0:
                    entry[0].put(None)
                    del self._active[handle]


class ManyClients(ThreadingHTTPServer):
    request_queue_size = 128  # all of them connect at once


def handler(service):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            out = service.ask(body["prompt"], body["max_tokens"])
            try:
                while out.get():
                    self._event({"choices": [{"text": "x", "finish_reason": None}]})
                self._event({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}})
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:  # the client has gone
                pass

        def _event(self, value):
            self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

        def log_message(self, *_):
            pass

    return Handler


def main():
    if sys.argv[1] != "--serve":
        cells.main(load)
        return
    service = Service(sys.argv[2], int(sys.argv[3]))
    ManyClients(("127.0.0.1", int(sys.argv[4])), handler(service)).serve_forever()


if __name__ == "__main__":
    main()

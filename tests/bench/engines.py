"""The engines under comparison, each with its own programs: one run of its offline benchmark, and its server."""
import contextlib
import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROMPT, GENERATED, BATCH, REPETITIONS = 512, 128, 8, 3
MEASURES = (f"pp{PROMPT}", f"tg{GENERATED}", f"tg{GENERATED}@{BATCH}")


def output_of(command):
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A running server process and what the system says of it."""

    def __init__(self, command, port):
        self.port = port
        self._log = tempfile.TemporaryFile(mode="w+")
        begin = time.monotonic()
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
        )
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > begin + 120:
                self.stop()
                self._log.seek(0)
                raise RuntimeError(f"{command[0]} did not become ready:\n{self._log.read()[-2000:]}")
            time.sleep(0.005)
        self.seconds_to_ready = time.monotonic() - begin

    def _healthy(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            content = reply.read()
        finally:
            connection.close()
        if reply.status != 200:
            raise RuntimeError(f"{path}: HTTP {reply.status}: {content[:300]!r}")
        return json.loads(content)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def idle_cores(self, seconds=5.0):
        """The share of one core that the server takes while nobody asks."""
        time.sleep(1)
        before = self.cpu_seconds()
        time.sleep(seconds)
        return (self.cpu_seconds() - before) / seconds

    def resident(self):
        """(all, of files) resident memory in bytes; pages of a mapped weight file count among those of files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        sizes = {k: int(v) * 1024 for k, v in re.findall(r"^(\w+):\s+(\d+) kB$", status, re.M)}
        return sizes["VmRSS"], sizes["RssFile"]


@contextlib.contextmanager
def running(command, port):
    server = Server(command, port)
    try:
        yield server
    finally:
        server.stop()


class Quire:
    def __init__(self, binary, threads, name="Quire", flags=("--max-model-len", 8192)):
        self._binary, self._threads, self.name, self._flags = binary, threads, name, flags

    def bench(self, model):
        """{measure: tokens a second} of one run."""
        command = [self._binary, "bench", model, "-p", PROMPT, "-n", GENERATED, "--threads", self._threads]
        report = json.loads(output_of([*command, "--json", "-r", REPETITIONS, "--batch", 1, BATCH]).stdout)
        return {result["name"]: result["tokens_per_second"] for result in report["results"]}

    def serve(self, model, slots):
        port = free_port()
        command = [self._binary, "serve", model, "--host", "127.0.0.1", "--port", port, "--served-model-name", "m"]
        return running([*command, "--threads", self._threads, *self._flags], port)

    def tokenize(self, model, text):
        with self.serve(model, 1) as server:
            return server.post("/tokenize", {"prompt": text})["tokens"]

    def mean_nll(self, model, text, ids, context, begins_with):
        """Over the second half of each chunk of `context` tokens, as llama-perplexity does it."""
        with self.serve(model, 1) as server:
            total = count = 0
            for start in range(0, len(ids) - context + 1, context):
                chunk = (begins_with + ids[start + len(begins_with) : start + context])
                body = {"model": "m", "prompt": chunk, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
                entries = server.post("/v1/completions", body)["choices"][0]["prompt_logprobs"]
                for position in range(context // 2 + 1, context):
                    total -= entries[position][str(chunk[position])]["logprob"]
                    count += 1
        return total / count


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, folder, threads):
        self._folder, self._threads = Path(folder), threads

    def bench(self, model):
        threads = ["-t", self._threads]
        single = [self._folder / "llama-bench", "-m", model, "-p", PROMPT, "-n", GENERATED, *threads, "-o", "json"]
        results = {}
        for entry in json.loads(output_of([*single, "-r", REPETITIONS]).stdout):
            name = f"pp{entry['n_prompt']}" if entry["n_prompt"] else f"tg{entry['n_gen']}"
            results[name] = entry["avg_ts"]
        batched = [self._folder / "llama-batched-bench", "-m", model, "-c", 4096, "-npp", 16, "-ntg", GENERATED, "-npl", BATCH]
        lines = output_of([*batched, *threads, "-tb", self._threads, "--output-format", "jsonl"]).stdout.splitlines()
        rows = [json.loads(line) for line in lines if line.startswith("{")]
        results[f"tg{GENERATED}@{BATCH}"] = rows[-1]["speed_tg"]
        return results

    def serve(self, model, slots):
        port = free_port()
        command = [self._folder / "llama-server", "-m", model, "--host", "127.0.0.1", "--port", port, "--alias", "m"]
        # One context of the same length for each slot, as its users set it.
        command += ["-np", slots, "-c", slots * 8192, "-t", self._threads, "-tb", self._threads]
        return running(command, port)

    def mean_nll(self, model, text, ids, context, begins_with):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            command = [self._folder / "llama-perplexity", "-m", model, "-f", file.name, "-c", context, "-t", self._threads]
            done = output_of(command)
        value = re.search(r"Final estimate: PPL = ([\d.]+)", done.stdout + done.stderr)
        if not value:
            raise RuntimeError("llama-perplexity printed no estimate:\n" + done.stderr[-2000:])
        return math.log(float(value.group(1)))

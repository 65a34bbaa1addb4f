"""The engines under comparison, each with its own programs: one run of its offline benchmark, and its server.

An engine has a name and `offline(model, cells)`, which gives {cell: tokens a second} of one run, or a text where it cannot.
Cells are named as in `quire bench`: pp512, tg64, tg64@8, tg64@d2048. `serve(model, slots)` is a running server with the
OpenAI completions API. Models are those of models.py.
"""
import contextlib
import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = Path(__file__).resolve().parent / "peers"
SECONDS_TO_READY = 600  # vLLM compiles when it starts
KV_CACHE_GIB = 4

sys.path.insert(0, str(PEERS))
import cells  # noqa: E402


class CannotError(Exception):
    """This engine does not do what is asked; the text says why."""


def output_of(command, **environment):
    done = subprocess.run(
        list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, env=os.environ | environment
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A running server process and what the system says of it."""

    def __init__(self, command, port, environment):
        self.port = port
        self._log = tempfile.TemporaryFile(mode="w+")
        begin = time.monotonic()
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > begin + SECONDS_TO_READY:
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
def running(command, port, **environment):
    server = Server(command, port, environment)
    try:
        yield server
    finally:
        server.stop()


def quire_results(text):
    return {result["name"]: result["tokens_per_second"] for result in json.loads(text)["results"]}


def llama_bench_result(text):
    (entry,) = json.loads(text)
    return entry["avg_ts"]


def llama_batched_result(text):
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return rows[-1]["speed_tg"]


def last_json(text):
    """What a driver printed, behind whatever its libraries printed."""
    return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])


class Quire:
    def __init__(self, binary, threads, name="Quire", flags=("--max-model-len", 8192)):
        self._binary, self._threads, self.name, self._flags = binary, threads, name, flags

    def offline(self, model, names):
        return quire_results(output_of(self.command(model, names)).stdout)

    def command(self, model, names):
        """One run of `quire bench` for all cells."""
        sizes = {name: cells.parse(name) for name in names}
        prompts = {p for p, g, _ in sizes.values() if g == 1}
        decodes = [(p, b) for p, g, b in sizes.values() if g > 1]
        command = [self._binary, "bench", model.gguf, "--threads", self._threads, "--json", "-r", 1]
        command += ["-n", max((g for _, g, _ in sizes.values() if g > 1), default=0)]
        command += ["-p", *(sorted(prompts) or [0])]
        for flag, values in (
            ("--batch", {b for p, b in decodes if p == cells.SHORT_PROMPT}),
            ("--depth", {p for p, _ in decodes if p != cells.SHORT_PROMPT}),
        ):
            command += [flag, *sorted(values)] if values else []
        return command

    def serve(self, model, slots):
        port = free_port()
        command = [self._binary, "serve", model.gguf, "--host", "127.0.0.1", "--port", port, "--served-model-name", "m"]
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

    def offline(self, model, names):
        results, single = {}, [self._folder / "llama-bench", "-m", model.gguf, "-t", self._threads, "-o", "json", "-r", 1]
        for name in names:
            prompt, generated, batch = cells.parse(name)
            if batch > 1:
                results[name] = self._batched(model, prompt, generated, batch)
                continue
            test = ["-p", prompt, "-n", 0] if generated == 1 else ["-p", 0, "-n", generated, "-d", prompt]
            results[name] = llama_bench_result(output_of([*single, *test]).stdout)
        return results

    def _batched(self, model, prompt, generated, batch):
        command = [self._folder / "llama-batched-bench", "-m", model.gguf, "-c", 4096, "-npp", prompt, "-ntg", generated]
        command += ["-npl", batch, "-t", self._threads, "-tb", self._threads, "--output-format", "jsonl"]
        return llama_batched_result(output_of(command).stdout)

    def serve(self, model, slots):
        port = free_port()
        command = [self._folder / "llama-server", "-m", model.gguf, "--host", "127.0.0.1", "--port", port, "--alias", "m"]
        # One context of the same length for each slot, as its users set it.
        command += ["-np", slots, "-c", slots * 8192, "-t", self._threads, "-tb", self._threads]
        return running(command, port)

    def mean_nll(self, model, text, ids, context, begins_with):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            command = [self._folder / "llama-perplexity", "-m", model.gguf, "-f", file.name, "-c", context, "-t", self._threads]
            done = output_of(command)
        value = re.search(r"Final estimate: PPL = ([\d.]+)", done.stdout + done.stderr)
        if not value:
            raise RuntimeError("llama-perplexity printed no estimate:\n" + done.stderr[-2000:])
        return math.log(float(value.group(1)))


class OpenVino:
    name = "OpenVINO"

    def __init__(self, environment, threads):
        self._python, self._threads = Path(environment) / "bin" / "python", threads

    def offline(self, model, names):
        return last_json(output_of([self._python, PEERS / "openvino_driver.py", self._file(model), self._threads, ",".join(names)]).stdout)

    def serve(self, model, slots):
        port = free_port()
        command = [self._python, PEERS / "openvino_driver.py", "--serve", self._file(model), self._threads, port]
        return running(command, port)

    def _file(self, model):
        """Its reader of GGUF knows Llama, Qwen2 and Qwen3 in F16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K."""
        if model.family == "gemma3":
            raise CannotError("its GGUF reader does not know gemma3")
        if model.form == "bf16":
            raise CannotError("its GGUF reader does not know BF16")
        return model.gguf


class Vllm:
    name = "vLLM"

    def __init__(self, environment, threads):
        self._bin, self._threads = Path(environment) / "bin", threads
        self._environment = {
            "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }

    def offline(self, model, names):
        command = [self._bin / "python", PEERS / "vllm_driver.py", self._folder(model), self._threads, ",".join(names)]
        return last_json(output_of(command, **self._environment).stdout)

    def serve(self, model, slots):
        port = free_port()
        command = [self._bin / "vllm", "serve", self._folder(model), "--host", "127.0.0.1", "--port", port]
        command += ["--served-model-name", "m", "--dtype", "bfloat16", "--max-model-len", 8192]
        return running(command, port, **self._environment)

    def _folder(self, model):
        """It has no fast kernels for GGUF on CPUs: BF16 weights of the same shape stand in for the 4-bit SmolLM2."""
        if not model.folder:
            raise CannotError("BF16 folders only")
        return model.folder

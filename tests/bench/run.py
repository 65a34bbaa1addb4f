#!/usr/bin/env python3
"""Measures Quire and llama.cpp in turn on this machine and prints the tables of docs/performance.md.

usage: run.py [--rounds 5] [--models smollm2,gemma3] [--only offline,http,nll,hybrid] [--text FILE] [--json FILE]

Every figure is the median over the rounds, with the smallest and the largest; the engines take turns within a round and
change their order from round to round, so that what else the machine does hits both. llama.cpp is built by
build_llama_cpp.sh; --llama-cpp DIR takes programs that are there already. The programs read warm files.
"""
import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import load
from engines import MEASURES, LlamaCpp, Quire

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = {"smollm2": "real_smollm2", "gemma3": "real_gemma3_270m"}
TITLES = {"smollm2": "SmolLM2-135M-Instruct, Q4_1", "gemma3": "Gemma-3-270M, Q4_K_M"}


def say(text):
    print(text, file=sys.stderr, flush=True)


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def in_turn(engines, round_index):
    return engines if round_index % 2 == 0 else engines[::-1]


def offline(engines, models, rounds):
    """{model: {measure: {engine: [tokens a second]}}}"""
    results = {m: {x: {e.name: [] for e in engines} for x in MEASURES} for m in models}
    for index in range(rounds):
        for model, path in models.items():
            for engine in in_turn(engines, index):
                for measure, value in engine.bench(path).items():
                    results[model][measure][engine.name].append(value)
                say(f"round {index + 1}, {model}, {engine.name}: "
                    + ", ".join(f"{x} {results[model][x][engine.name][-1]:.0f}" for x in MEASURES))
    return results


def one_serving_round(engine, path, seed):
    values = {}
    with engine.serve(path, 5) as server:
        values["seconds to ready"] = server.seconds_to_ready
        values["idle, % of a core"] = 100 * server.idle_cores()
        load.stream(server.port, load.random_ids(seed + (1 << 20), 16), 8)  # the first request pays for what comes once
        shared = load.shared_prefix(server.port, seed)
        values["shared prefix: output tokens/s"] = shared["tokens_per_second"]
        values["shared prefix: time to first token, p50 ms"] = 1e3 * statistics.median(shared["times_to_first"])
        values["long prompt: others' inter-token p99 ms"] = 1e3 * percentile(
            (beside := load.long_prompt_beside(server.port, seed + 1))["gaps"], 0.99
        )
        values["long prompt: its time to first token, ms"] = 1e3 * beside["time_to_first"]
        resident, of_files = server.resident()
        values["resident after that, MiB"] = resident / 2**20
        values["of it mapped files, MiB"] = of_files / 2**20
    return values


def serving(engines, path, rounds):
    """{measure: {engine: [value]}}"""
    results = {}
    for index in range(rounds):
        for engine in in_turn(engines, index):
            for measure, value in one_serving_round(engine, path, 2 * index + 1).items():
                results.setdefault(measure, {e.name: [] for e in engines})[engine.name].append(value)
            say(f"round {index + 1}, serving, {engine.name}: "
                + ", ".join(f"{k} {v[engine.name][-1]:.1f}" for k, v in results.items()))
    return results


HYBRID_BYTES = 300_000_000  # five contexts of chats() in one group, all 16 in groups


def hybrid(pair, path, rounds):
    """Quire with and without KV cache groups in equal memory, both servers up and asked in turn: {measure: {name: [value]}}.
    A single client's chats are short, so there are several in a round."""
    results = {}
    with contextlib.ExitStack() as stack:
        servers = {engine.name: stack.enter_context(engine.serve(path, 16)) for engine in pair}
        for server in servers.values():
            load.stream(server.port, load.random_ids(1 << 20, 16), 8)
        chats = [clients for _ in range(rounds) for clients in (1, 1, 1, 1, 1, 16)]
        for index, clients in enumerate(chats):
            for engine in in_turn(pair, index):
                rates = load.chats(servers[engine.name].port, index + 1, clients)
                who = f"{clients} clients" if clients > 1 else "one client"
                for answers, rate in zip(("first", "later"), rates):
                    results.setdefault(f"{who}: {answers} answers", {e.name: [] for e in pair})[engine.name].append(rate)
                say(f"{who}, {engine.name}: first answers {rates[0]:.1f}, later ones {rates[1]:.1f} tokens/s")
    return results


def likelihood(engines, models, text_file):
    """{model: {engine: mean negative log-likelihood}} of the golden text over several lengths of context (one alone is a
    thousand tokens, and its mean moves by more than the engines differ), or of a longer text in contexts of 512."""
    results = {}
    for model, path in models.items():
        golden = json.loads((ROOT / "tests/golden/models" / GOLDEN[model] / "golden.json").read_text())
        text, ids, bos = golden["nll"]["text"], golden["nll"]["ids"], golden["bos_prepended"]
        contexts = [len(ids) // parts for parts in (2, 4, 8)]
        if text_file:
            text = Path(text_file).read_text()
            ids, contexts = next(e for e in engines if e.name == "Quire").tokenize(path, text), [512]
        results[model] = {
            e.name: statistics.fmean(e.mean_nll(path, text, ids, context, bos) for context in contexts) for e in engines
        }
        say(f"{model}: {results[model]}")
    return results


def cell(values):
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    return f"{middle:.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(rows, names):
    ratio = len(names) == 2
    lines = ["| | " + " | ".join(names) + (" | ratio" if ratio else "") + " |", "|---|" + "---|" * (len(names) + ratio)]
    for title, values in rows.items():
        cells = [cell(values[name]) for name in names]
        if ratio:
            mine, theirs = (statistics.median(values[name]) for name in names)
            cells.append(f"{mine / theirs:.2f}" if theirs else "")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine():
    names = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return f"{names[0] if names else 'unknown CPU'}, {len(os.sched_getaffinity(0))} CPUs, load before {os.getloadavg()[0]:.1f}"


def report(results, engines, options, about):
    names = [e.name for e in engines]
    parts = [f"{about}; {options.threads} threads, {options.rounds} rounds: median (smallest-largest)."]
    for model, rows in results.get("offline", {}).items():
        parts.append(f"\n{TITLES[model]}, tokens/s:\n\n{table(rows, names)}")
    for model, rows in results.get("http", {}).items():
        parts.append(f"\n{TITLES[model]}, through HTTP:\n\n{table(rows, names)}")
    for model, rows in results.get("hybrid", {}).items():
        pair = list(next(iter(rows.values())))
        parts.append(f"\n{TITLES[model]}, {HYBRID_BYTES} bytes of KV cache, output tokens/s:\n\n{table(rows, pair)}")
    if results.get("nll"):
        rows = {TITLES[m]: {name: [value] for name, value in v.items()} for m, v in results["nll"].items()}
        lines = ["| | " + " | ".join(e.name for e in engines) + " |", "|---|" + "---|" * len(engines)]
        lines += [f"| {title} | " + " | ".join(f"{v[e.name][0]:.4f}" for e in engines) + " |" for title, v in rows.items()]
        parts.append("\nMean negative log-likelihood of the same tokens:\n\n" + "\n".join(lines))
    return "\n".join(parts)


def model_path(name):
    command = [sys.executable, ROOT / "scripts" / "fetch_model.py", name]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default=ROOT / "build" / "release" / "quire", help="the program")
    parser.add_argument("--llama-cpp", help="a folder with llama.cpp's programs, instead of building them")
    parser.add_argument("--engines", default="quire,llama.cpp", help="which of the two to run")
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--only", default="offline,http,nll")
    parser.add_argument("--text", help="a file whose likelihood to compare, instead of the golden text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="also write every single value to this file")
    options = parser.parse_args()

    engines = []
    if "quire" in options.engines:
        engines.append(Quire(options.quire, options.threads))
    if "llama.cpp" in options.engines:
        build = [ROOT / "tests" / "bench" / "build_llama_cpp.sh", *([options.llama_cpp] if options.llama_cpp else [])]
        folder = subprocess.run(build, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
        engines.append(LlamaCpp(folder, options.threads))
    models = {name: model_path(name) for name in options.models.split(",")}
    parts, about = options.only.split(","), machine()

    results = {}
    if "offline" in parts:
        results["offline"] = offline(engines, models, options.rounds)
    if "nll" in parts:
        results["nll"] = likelihood(engines, models, options.text)
    if "http" in parts:
        results["http"] = {name: serving(engines, path, options.rounds) for name, path in models.items()}
    if "hybrid" in parts:
        flags = ("--max-model-len", 4096, "--kv-cache-memory-bytes", HYBRID_BYTES)
        pair = [
            Quire(options.quire, options.threads, "groups", flags),
            Quire(options.quire, options.threads, "one group", (*flags, "--disable-hybrid-kv-cache-manager")),
        ]
        results["hybrid"] = {name: hybrid(pair, path, options.rounds) for name, path in models.items()}
    if options.json:
        Path(options.json).write_text(json.dumps({"about": about, **results}, indent=1))
    print(report(results, engines, options, about))


if __name__ == "__main__":
    main()

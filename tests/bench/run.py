#!/usr/bin/env python3
"""Measures Quire and other engines in turn on this machine and prints the tables of docs/performance.md.

usage: run.py [--engines quire,llama.cpp] [--models smollm2,gemma3] [--cells pp512,tg64,...] [--rounds 5] [--json FILE]

Every figure is the median over the rounds, with the smallest and the largest; the engines take turns within a round and
change their order from round to round, so that what else the machine does hits all. Before each engine's turn a probe reads
what memory and multipliers give. Peers are installed outside the tree when first asked for. Files are read warm.

engines  quire, llama.cpp, openvino, vllm
models   smollm2 and gemma3 are real files; qwen3-0.6b, gemma3-1b and smollm2-135m with -bf16, -q8_0, -q4_0 or -q4_k are
         random weights of those shapes
cells    ppN: prompt of N tokens; tgN: one decode of N; tgN@B: B decodes together; tgN@dD: milliseconds that a depth of D
         adds to a token of tgN (which must be among the cells); start, clients, prefix, prefix16, long: through HTTP;
         nll: likelihood of the golden text (real files); hybrid: Quire's KV cache groups on and off in equal memory
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import hybrid
import load
import models
from engines import PEERS, CannotError, LlamaCpp, OpenVino, Quire, Vllm, cells, output_of
from tables import added_by_depth, in_turn, percentile, table

ROOT = Path(__file__).resolve().parent.parent.parent
AFTERWARDS = ("nll", "hybrid")  # have rounds of their own, or need none
HIGHER_IS_BETTER = re.compile(r"tokens/s|^pp\d+$|^tg\d+(@\d+)?$")


def say(text):
    print(text, file=sys.stderr, flush=True)


def offline_round(engine, model, names):
    """{cell: value or what went wrong}"""
    fitting = [n for n in names if int((re.search(r"@d(\d+)", n) or [0, 0])[1]) + 64 <= model.context]
    try:
        values = added_by_depth(engine.offline(model, fitting))
    except (CannotError, RuntimeError) as error:
        values = dict.fromkeys(fitting, str(error).replace("\n", " ")[-300:])
    return {name: values.get(name, "beyond the model's context") for name in names}


def start(server, seed):
    load.stream(server.port, load.random_ids(seed + (1 << 20), 16), 8)
    resident, of_files = server.resident()
    return {
        "seconds to ready": server.seconds_to_ready,
        "idle, % of a core": 100 * server.idle_cores(),
        "resident after one request, MiB": resident / 2**20,
        "of it mapped files, MiB": of_files / 2**20,
    }


def shared_prefix(server, seed, title, clients):
    result = load.shared_prefix(server.port, seed, clients)
    return {
        f"{title}: output tokens/s": result["tokens_per_second"],
        f"{title}: time to first token, p50 ms": 1e3 * statistics.median(result["times_to_first"]),
    }


def long_prompt(server, seed):
    result = load.long_prompt_beside(server.port, seed)
    return {
        "long prompt: others' inter-token p99 ms": 1e3 * percentile(result["gaps"], 0.99),
        "long prompt: its time to first token, ms": 1e3 * result["time_to_first"],
        "the same alone, ms": 1e3 * result["alone"],
    }


SERVED_CELLS = {
    "start": start,
    "clients": lambda server, seed: {"16 clients: output tokens/s": load.many_clients(server.port, seed)},
    "prefix": lambda server, seed: shared_prefix(server, seed + 1, "4 clients, shared prefix", 4),
    "prefix16": lambda server, seed: shared_prefix(server, seed + 2, "16 clients, shared prefix", 16),
    "long": lambda server, seed: long_prompt(server, seed + 3),
}


def served_round(engine, model, names, seed):
    """{title: value}, or under a cell's own name what went wrong."""
    values = {}
    try:
        with engine.serve(model, 16 if {"clients", "prefix16"} & set(names) else 5) as server:
            load.stream(server.port, load.random_ids(seed + (1 << 21), 16), 8)  # pays for what comes once
            for name in names:
                try:
                    values |= SERVED_CELLS[name](server, seed)
                except (OSError, RuntimeError, LookupError) as error:
                    values[name] = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    except (CannotError, RuntimeError) as error:
        values |= dict.fromkeys(names, str(error).replace("\n", " ")[-300:])
    return values


def likelihood(engines, model, text_file):
    """{engine: mean negative log-likelihood, or why none} of the golden text over several lengths of context (one alone is a
    thousand tokens, and its mean moves by more than the engines differ), or of a longer text in contexts of 512."""
    able = [e for e in engines if hasattr(e, "mean_nll") and model.golden]
    reason = "only of real files, by Quire and llama.cpp"
    results = {e.name: reason for e in engines if e not in able}
    if not able:
        return results
    golden = json.loads((ROOT / "tests/golden/models" / model.golden / "golden.json").read_text())
    text, ids, bos = golden["nll"]["text"], golden["nll"]["ids"], golden["bos_prepended"]
    contexts = [len(ids) // parts for parts in (2, 4, 8)]
    if text_file:
        text = Path(text_file).read_text()
        ids, contexts = next(e for e in engines if e.name == "Quire").tokenize(model, text), [512]
    means = {e.name: statistics.fmean(e.mean_nll(model, text, ids, context, bos) for context in contexts) for e in able}
    return results | means


def one_turn(engine, model, names, round_index):
    values, served = {}, [n for n in names if n in SERVED_CELLS]
    if offline := [n for n in names if n not in SERVED_CELLS]:
        values |= offline_round(engine, model, offline)
    if served:
        values |= served_round(engine, model, served, 10 * round_index + 1)
    return values


def measure(engines, chosen, names, rounds, probe, keep):
    """({model: {title: {engine: [value]}}}, [probes]); `keep` is called with both after every turn."""
    results, probes = {m.name: {} for m in chosen}, []
    for index in range(rounds):
        for model in chosen:
            for engine in in_turn(engines, index):
                probes.append(probe())
                values = one_turn(engine, model, names, index)
                for title, value in values.items():
                    results[model.name].setdefault(title, {}).setdefault(engine.name, []).append(value)
                say(f"round {index + 1}, {model.name}, {engine.name}: {values} {probes[-1]}")
                keep(results, probes)
        probes.append(probe())
    return results, probes


def prober(program, threads):
    if not Path(program).exists():
        say(f"{program} is not built (cmake -DQUIRE_BUILD_BENCH=ON): no probes")
        return dict
    return lambda: json.loads(output_of([program, threads]).stdout)


def machine(probes):
    names = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    about = f"{names[0] if names else 'unknown CPU'}, {len(os.sched_getaffinity(0))} CPUs"
    for key, unit in (("dram_gb_s", "GB/s read from memory"), ("vnni_tops", "T operations/s of vpdpbusd")):
        if values := [p[key] for p in probes if key in p]:
            about += f", {statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f}) {unit}"
    if any("amx" in p for p in probes):
        about += f", AMX {'usable' if probes[0]['amx'] else 'not usable'}"
    return about


def make_engines(options):
    threads = options.threads
    makers = {
        "quire": lambda: Quire(options.quire, threads),
        "llama.cpp": lambda: LlamaCpp(
            models.last_line([PEERS.parent / "build_llama_cpp.sh", *([options.llama_cpp] if options.llama_cpp else [])]),
            threads,
        ),
        "openvino": lambda: OpenVino(models.last_line([PEERS / "install.sh", "openvino"]), threads),
        "vllm": lambda: Vllm(models.last_line([PEERS / "install.sh", "vllm"]), threads),
    }
    unknown = set(options.engines.split(",")) - set(makers)
    if unknown:
        sys.exit(f"error: --engines: {', '.join(sorted(unknown))} is none of {', '.join(makers)}")
    return [makers[name]() for name in options.engines.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default=ROOT / "build" / "release" / "quire", help="the program")
    parser.add_argument("--llama-cpp", help="a folder with llama.cpp's programs, instead of building them")
    parser.add_argument("--probe", default=ROOT / "build" / "release" / "tests" / "bench" / "probe_bench")
    parser.add_argument("--engines", default="quire,llama.cpp")
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--cells", default="pp512,tg64,tg64@8,start,prefix,long,nll")
    parser.add_argument("--text", help="a file whose likelihood nll compares, instead of the golden text; needs quire")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-amx", action="store_true", help="keep oneDNN, in OpenVINO and vLLM, from using AMX")
    parser.add_argument("--json", help="also write every single value to this file, after every turn")
    options = parser.parse_args()
    names = options.cells.split(",")
    for name in names:
        if name not in SERVED_CELLS and name not in AFTERWARDS:
            try:
                cells.parse(name)
            except ValueError as error:
                sys.exit(f"error: --cells: {error}; or one of {', '.join((*SERVED_CELLS, *AFTERWARDS))}")
    if options.text and "quire" not in options.engines.split(","):
        sys.exit("error: --text needs the engine quire, which makes tokens of it")

    if options.without_amx:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
    engines = make_engines(options)
    chosen = [models.find(name, "vllm" in options.engines) for name in options.models.split(",")]

    groups, pair = {}, hybrid.pair(options.quire, options.threads)

    def keep(results, probes):
        if options.json:
            values = {"about": machine(probes), "results": results, "hybrid": groups, "probes": probes}
            Path(options.json).write_text(json.dumps(values, indent=1))

    in_rounds = [name for name in names if name not in AFTERWARDS]
    probe = prober(options.probe, options.threads)
    results, probes = measure(engines, chosen, in_rounds, options.rounds if in_rounds else 0, probe, keep)
    if "nll" in names:
        for model in chosen:
            results[model.name]["nll"] = {e: [v] for e, v in likelihood(engines, model, options.text).items()}
    if "hybrid" in names:
        for model in chosen:
            groups[model.name] = hybrid.measure(pair, model, options.rounds, say)
    keep(results, probes)
    about = machine(probes) + (", not used by oneDNN" if options.without_amx else "")
    print(f"{about}; {options.threads} threads, {options.rounds} rounds: median (smallest-largest).")
    for model in chosen:
        if rows := results[model.name]:
            print(f"\n{model.title}:\n")
            print(table(rows, [e.name for e in engines], lower_is_better=lambda title: not HIGHER_IS_BETTER.search(title)))
        if "hybrid" in names:
            print(f"\n{model.title}, {hybrid.BYTES} bytes of KV cache, output tokens/s:\n")
            print(table(groups[model.name], [e.name for e in pair], mine=pair[0].name))


if __name__ == "__main__":
    main()

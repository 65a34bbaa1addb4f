#!/usr/bin/env python3
"""Instructions of a decode step, counted by callgrind.

    tests/bench/instructions.py MODEL                          # one request
    tests/bench/instructions.py MODEL --batch 1 8 --short 24 --long 48

Time depends on the machine and its mood, this count does not: the same program, model and batch give it again, to a
fraction of a percent, so a change shows that no clock would show. `quire bench` runs twice, for a few tokens and for a
few more, on one thread; what a step takes is the difference. valgrind (apt install valgrind) knows no AVX-512, so the
kernels are those of AVX2, and the instructions of loading and of the first tokens cancel out.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = 2  # of each test in `quire bench -r 1`: one that does not count, one that does


def collected(output):
    """The instructions that callgrind counted, from what it printed."""
    found = re.search(r"Collected : (\d+)", output)
    if not found:
        raise ValueError("callgrind printed no count: " + output[-500:])
    return int(found[1])


def per_step(short, long):
    """Instructions of a step from (tokens, count) of two runs."""
    return (long[1] - short[1]) / (RUNS * (long[0] - short[0]))


def count(arguments, batch, tokens):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(arguments.binary), "bench"]
    command += [arguments.model, "-p", "0", "-n", str(tokens), "-r", "1", "--threads", "1", "--batch", str(batch)]
    done = subprocess.run(command, env={**os.environ, "QUIRE_ISA": "avx2"}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    return collected(done.stderr)


def main():
    parser = argparse.ArgumentParser(description="instructions of a decode step")
    parser.add_argument("model", help="a folder or a .gguf file")
    parser.add_argument("--batch", type=int, nargs="+", default=[1], help="requests that decode together")
    parser.add_argument("--short", type=int, default=16, help="tokens of the first run, at least 2")
    parser.add_argument("--long", type=int, default=24, help="tokens of the second run")
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "release" / "quire")
    arguments = parser.parse_args()
    if not 2 <= arguments.short < arguments.long:
        parser.error("--short must be at least 2, and --long greater")
    if not shutil.which("valgrind"):
        sys.exit("valgrind is not installed")
    for batch in arguments.batch:
        ends = [(tokens, count(arguments, batch, tokens)) for tokens in (arguments.short, arguments.long)]
        step = per_step(*ends)
        print(f"batch {batch}: {step:,.0f} instructions a step, {step / batch:,.0f} a token", flush=True)


if __name__ == "__main__":
    main()

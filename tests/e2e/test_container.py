"""The image of the Dockerfile has every library that the program needs."""
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from quire_server import ROOT, quire_binary

BASE = {"libc6", "libgcc-s1"}  # of every Debian


def package_of(path):
    for name in (path, path.resolve()):  # /lib may be a link to /usr/lib, and dpkg knows one of the two
        for spelling in (name, Path("/usr") / name.relative_to("/"), Path("/") / str(name).removeprefix("/usr/")):
            found = subprocess.run(["dpkg-query", "-S", str(spelling)], capture_output=True, text=True)
            if found.returncode == 0:
                return found.stdout.partition(":")[0]
    return None


def test_the_image_has_the_programs_libraries():
    release = Path("/etc/os-release")
    if not shutil.which("dpkg-query") or "VERSION_CODENAME=bookworm" not in release.read_text():
        pytest.skip("not the Debian of the Dockerfile")
    listed = subprocess.run(["ldd", quire_binary()], check=True, capture_output=True, text=True).stdout
    direct = subprocess.run(["readelf", "-d", quire_binary()], check=True, capture_output=True, text=True).stdout
    wanted = set(re.findall(r"NEEDED.*\[(.+)\]", direct))
    paths = {name: Path(path) for name, path in re.findall(r"(\S+) => (/\S+)", listed)}
    packages = {package_of(paths[name]) for name in wanted if name in paths} - BASE
    assert len(packages) > 3 and None not in packages
    stage = (ROOT / "Dockerfile").read_text().rpartition("FROM ")[2]
    installed = set(re.search(r"--no-install-recommends \\\n((?:\s+.*\\\n)+?) &&", stage)[1].replace("\\", "").split())
    assert installed == packages

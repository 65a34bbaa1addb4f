"""The house rules that a program can check, as pure functions from a tree to a list of violations.

The order of the rooms is read from the top CMakeLists.txt and the declared dependencies from each room's, so that neither
is written down twice.
"""
import re
import subprocess
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)
CODE = (".h", ".cc")
MAX_LINES = 500

# Libraries whose types must not travel through headers (fmt is as common as the standard library here), and the one room
# that may use them at all, where there is one.
LIBRARIES = {"boost/": "net", "simdjson": "api", "spdlog/": "base", "nlohmann/": None, "CLI/": "apps", "histedit.h": "apps", "yaml-cpp/": "apps", "gtest/": None, "rapidcheck": None}
# Every test uses these, so a header for tests may show them to tests of any room.
TEST_LIBRARIES = ("gtest/", "rapidcheck")
# Code that names instructions of one kind of CPU.
CPU_HEADERS = ("immintrin.h", "cpuid.h", "x86intrin.h", "arm_neon.h")
CPU_ROOMS = ("base", "kernels")


def room_order(root):
    text = (root / "CMakeLists.txt").read_text()
    return re.search(r"foreach\(room ([\w ]+)\)", text).group(1).split()


def declared(root, room):
    """The rooms that `room` may use: what its CMakeLists.txt names, and what those use."""
    text = (root / "src" / room / "CMakeLists.txt").read_text()
    match = re.search(r"quire_room\(\w+(?:\s+DEPS((?:\s+(?!LIBS\b)\w+)*))?", text)
    names = set((match.group(1) or "").split()) if match else set()
    for name in list(names):
        if (root / "src" / name / "CMakeLists.txt").exists():
            names |= declared(root, name)
    return names


def code_files(root):
    for folder in ("include", "src", "apps"):
        if (root / folder).is_dir():
            yield from sorted(p for p in (root / folder).rglob("*") if p.suffix in CODE)


def room_of(root, path):
    parts = path.relative_to(root).parts
    return parts[1] if parts[0] == "src" else parts[0]


def includes(path):
    return [(quote == '"', name) for quote, name in INCLUDE.findall(path.read_text())]


def forbidden_edges(root):
    """Includes from a room into one that does not stand above it, or that its CMakeLists.txt does not declare."""
    order = room_order(root)
    found = []
    for path in code_files(root):
        room = room_of(root, path)
        for _, name in includes(path):
            target = name.split("/")[0]
            where = f"{path.relative_to(root)} includes {name}"
            if room == "include" and target in order:
                found.append(f"{where}: the embedding API stands above every room")
            if room not in order or target not in order or target == room:
                continue
            if order.index(target) > order.index(room):
                found.append(f"{where}: {target} does not stand above {room}")
            elif target not in declared(root, room):
                found.append(f"{where}: src/{room}/CMakeLists.txt does not declare {target}")
    return found


def library_of(name):
    return next((prefix for prefix in LIBRARIES if name.startswith(prefix)), None)


def foreign_headers(root):
    """Libraries used outside the room that wraps them or shown to another room by a header, and code for one CPU outside
    the rooms made for it."""
    found = []
    users = {}  # a header's name as it is included: who includes it
    for path in code_files(root):
        for _, name in includes(path):
            users.setdefault(name, []).append(path)
    for path in code_files(root):
        room = room_of(root, path)
        for _, name in includes(path):
            where = f"{path.relative_to(root)} includes {name}"
            if name in CPU_HEADERS and room not in CPU_ROOMS:
                found.append(f"{where}: only {' and '.join(CPU_ROOMS)} know the CPU")
            library = library_of(name)
            if library is None:
                continue
            if LIBRARIES[library] not in (None, room):
                found.append(f"{where}: only {LIBRARIES[library]} uses this library")
            elif path.suffix == ".h":
                strangers = [u for u in reached_from(root, path, users) if room_of(root, u) != room]
                if library in TEST_LIBRARIES:
                    strangers = [u for u in strangers if u.suffix == ".cc" and not u.stem.endswith("_test")]
                found += [f"{where}, and {u.relative_to(root)} of another room sees it" for u in strangers]
    return found


def reached_from(root, header, users):
    """Every file that includes `header`, directly or through headers."""
    seen, waiting = set(), [header]
    while waiting:
        path = waiting.pop()
        parts = path.relative_to(root).parts
        for user in users.get("/".join(parts[1:]), []):
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return sorted(seen)


def stray_macros(root):
    allowed = re.compile(r"^src/kernels/|^src/base/check\.h$")
    found = []
    for path in code_files(root):
        name = str(path.relative_to(root))
        if not allowed.match(name) and re.search(r"^\s*#\s*define\b", path.read_text(), re.M):
            found.append(f"{name} defines a macro")
    return found


def guard_of_headers(root):
    return [
        f"{path.relative_to(root)} has no #pragma once"
        for path in code_files(root)
        if path.suffix == ".h" and "#pragma once" not in path.read_text()
    ]


def tracked_files(root):
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    return [root / name for name in names.split("\0") if name and (root / name).is_file()]


# Each host and folder is put together here, so that this file is clean under its own rule.
REGISTRY_HOSTS = [
    ".".join(words)
    for words in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("crates", "io"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("deb", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("proxy", "golang", "org"),
        ("repo1", "maven", "org"),
        ("maven", "apache", "org"),
    )
]
MACHINE_PATH = re.compile(r"(?<![\w.$}~*/-])/(?:" + "|".join(("work", "root", "home", "Users")) + r")/\w")
# Cargo writes the registry's name into its lock file, and the build needs that file as Cargo wrote it.
UNCHECKED = ("Cargo.lock",)
TEXT_LIMIT = 4 << 20


def places_named(files):
    """Registry hosts and absolute paths of one machine in text files: they hold true nowhere else."""
    found = []
    for path in files:
        data = path.read_bytes()
        if path.name in UNCHECKED or len(data) > TEXT_LIMIT or b"\0" in data[:4096]:
            continue
        text = data.decode(errors="replace")
        found += [f"{path} names a registry's host" for host in REGISTRY_HOSTS if host in text]
        found += [f"{path} names the folder {match.group(0)}..." for match in MACHINE_PATH.finditer(text)]
    return found


def long_files(files):
    return [
        f"{path} has {lines} lines"
        for path in files
        if path.suffix in (*CODE, ".py", ".rs") and (lines := path.read_text(errors="replace").count("\n")) > MAX_LINES
    ]


def broken_links(files):
    """Relative links of Markdown pages that lead to no file."""
    found = []
    for path in files:
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)\s#]+)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                found.append(f"{path} links to {target}, which does not exist")
    return found

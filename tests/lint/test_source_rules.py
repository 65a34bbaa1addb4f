"""The house rules on the tree as it is, and on small trees that break each of them."""
import shutil
import subprocess
import warnings

import pytest
import source_rules as rules

from quire_server import ROOT


def test_no_include_points_upwards():
    assert rules.forbidden_edges(ROOT) == []


def test_libraries_stay_in_the_room_that_wraps_them():
    assert rules.foreign_headers(ROOT) == []


def test_no_stray_macros():
    assert rules.stray_macros(ROOT) == []


def test_headers_are_guarded():
    assert rules.guard_of_headers(ROOT) == []


def test_no_registry_host_and_no_path_of_one_machine():
    assert rules.places_named(rules.tracked_files(ROOT)) == []


def test_links_lead_somewhere():
    assert rules.broken_links(rules.tracked_files(ROOT)) == []


def test_long_files_are_pointed_out():
    for line in rules.long_files(rules.tracked_files(ROOT)):
        warnings.warn(line, stacklevel=1)


def test_format():
    formatter = shutil.which("clang-format-19")
    if formatter is None:
        pytest.skip("clang-format-19 is not installed")
    files = [p for p in rules.tracked_files(ROOT) if p.suffix in rules.CODE]
    reply = subprocess.run([formatter, "--dry-run", "-Werror", *files], cwd=ROOT, capture_output=True, text=True)
    assert reply.returncode == 0, "not formatted:\n" + "\n".join(
        sorted({line.split(":")[0] for line in reply.stderr.splitlines() if "error:" in line})
    )


@pytest.fixture
def tree(tmp_path):
    def write(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    write(
        {
            "CMakeLists.txt": "foreach(room base cache engine net)\n",
            "src/base/CMakeLists.txt": "quire_room(base LIBS fmt::fmt)",
            "src/cache/CMakeLists.txt": "quire_room(cache DEPS base)",
            "src/engine/CMakeLists.txt": "quire_room(engine DEPS cache LIBS x)",
            "src/net/CMakeLists.txt": "quire_room(net DEPS base)",
        }
    )
    return write


def test_an_include_of_a_lower_room_is_found(tree):
    root = tree({"src/cache/a.h": '#include "engine/b.h"\n', "src/engine/b.h": '#include "base/c.h"\n#include "cache/a.h"\n'})
    assert rules.forbidden_edges(root) == ["src/cache/a.h includes engine/b.h: engine does not stand above cache"]


def test_an_undeclared_dependency_is_found(tree):
    root = tree({"src/net/a.cc": '#include "engine/b.h"\n'})
    assert rules.forbidden_edges(root) == ["src/net/a.cc includes engine/b.h: src/net/CMakeLists.txt does not declare engine"]


def test_the_embedding_api_includes_no_room(tree):
    assert len(rules.forbidden_edges(tree({"include/quire/a.h": '#include "base/c.h"\n'}))) == 1


def test_libraries_out_of_their_room_are_found(tree):
    root = tree(
        {
            "src/net/a.h": "#include <boost/asio.hpp>\n",
            "src/engine/a.cc": "#include <boost/asio.hpp>\n#include <nlohmann/json.hpp>\n#include <immintrin.h>\n",
            "src/cache/private.h": "#include <nlohmann/json.hpp>\n",
            "src/cache/a.cc": '#include "cache/private.h"\n',
            "src/cache/shown.h": "#include <nlohmann/json.hpp>\n",
            "src/cache/middle.h": '#include "cache/shown.h"\n',
            "src/engine/b.cc": '#include "cache/middle.h"\n',
            "src/cache/test_files.h": "#include <gtest/gtest.h>\n",
            "src/engine/a_test.cc": '#include "cache/test_files.h"\n',
            "src/engine/c.cc": '#include "cache/test_files.h"\n',
        }
    )
    assert rules.foreign_headers(root) == [
        "src/cache/shown.h includes nlohmann/json.hpp, and src/engine/b.cc of another room sees it",
        "src/cache/test_files.h includes gtest/gtest.h, and src/engine/c.cc of another room sees it",
        "src/engine/a.cc includes boost/asio.hpp: only net uses this library",
        "src/engine/a.cc includes immintrin.h: only base and kernels know the CPU",
    ]


def test_macros_and_missing_guards_are_found(tree):
    root = tree({"src/net/a.h": "#define X 1\n", "src/kernels/a.h": "#pragma once\n#define X 1\n"})
    assert rules.stray_macros(root) == ["src/net/a.h defines a macro"]
    assert rules.guard_of_headers(root) == ["src/net/a.h has no #pragma once"]


def test_hosts_and_machine_paths_are_found(tree):
    host = "https://" + rules.REGISTRY_HOSTS[0] + "/simple"
    root = tree({"a.md": host, "b.sh": "cd " + "/work" + "/main", "c.md": "see ~/work/x, include/home/y and $X/root/z"})
    assert [line.split(" ")[1] for line in rules.places_named([root / "a.md", root / "b.sh", root / "c.md"])] == ["names"] * 2


def test_broken_links_and_long_files_are_found(tree):
    root = tree({"a.md": "[x](b.md) [y](a.md#z) [w](https://example.com)", "b.cc": "\n" * (rules.MAX_LINES + 1)})
    assert len(rules.broken_links([root / "a.md"])) == 1
    assert len(rules.long_files([root / "b.cc"])) == 1

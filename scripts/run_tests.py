#!/usr/bin/env python3
"""Builds Quire and runs its tests; the last line says `N passed, N failed`.

Every test case is counted, not every program. A suite that does not build, crashes or runs no test counts as failed.
Output goes to build/test-logs, the end of it is shown where something failed.
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
LOGS = BUILD / "test-logs"
TESTS = ROOT / "tests"  # whose requirements.txt most Python tests run with
COVERAGE_PERCENT = 85.0
TEST_SOURCE = re.compile(r"_test\.cc$|^test_|_oracle\.h$|_world\.h$")
PROGRAM_SECONDS = 2400
SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}
# Where threads meet: the pool, the engine with its tests on whole models, the API and the server.
TSAN_TESTS = ("base_test", "engine_api_test", "cache_faults_test", "golden_test", "api_test", "net_test")


@dataclass
class Suite:
    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list = field(default_factory=list)
    seconds: float = 0.0

    def fail(self, what):
        self.failed += 1
        self.failures.append(what)


def log_path(name):
    LOGS.mkdir(parents=True, exist_ok=True)
    return LOGS / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".log")


def run(name, command, env=None, cwd=ROOT):
    """The exit code of `command`, its output in the log of that name."""
    with open(log_path(name), "ab") as log:
        log.write(f"$ {' '.join(map(str, command))}\n".encode())
        log.flush()
        return subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        ).returncode


def tail(name, lines=60):
    return "\n".join(log_path(name).read_text(errors="replace").splitlines()[-lines:])


class Runner:
    def __init__(self):
        self.suites = []
        self._unbuilt = set()

    def suite(self, name, body):
        """Runs one suite, shows how it went and keeps its counts."""
        suite = Suite(name)
        log_path(name).unlink(missing_ok=True)
        print(f"-- {name} ...", flush=True)
        start = time.monotonic()
        body(suite)
        suite.seconds = time.monotonic() - start
        if suite.passed + suite.failed == 0:
            suite.fail("no test ran")
        if suite.failed:
            print(tail(name) if log_path(name).exists() else "", flush=True)
            print(f"   log: {log_path(name).relative_to(ROOT)}", flush=True)
        self.suites.append(suite)
        self.show(suite)

    @staticmethod
    def show(suite):
        skipped = f", {suite.skipped} skipped" if suite.skipped else ""
        print(f"   {suite.name}: {suite.passed} passed, {suite.failed} failed{skipped} ({suite.seconds:.0f} s)", flush=True)
        for failure in suite.failures[:20]:
            print(f"     FAILED {failure}", flush=True)

    def finish(self):
        print("\nsummary")
        for suite in self.suites:
            self.show(suite)
        failed = sum(suite.failed for suite in self.suites)
        print(f"{sum(suite.passed for suite in self.suites)} passed, {failed} failed")
        return 1 if failed else 0

    # Building. A build counts as a test only when it fails: then it is one failure, and so is each suite that needed it.

    def build(self, preset, only=None):
        """Everything, or those of the test programs in `only` that exist."""
        name = f"build {preset}"
        log_path(name).unlink(missing_ok=True)
        print(f"-- {name} ...", flush=True)
        start = time.monotonic()
        folder = BUILD / preset
        code = 0
        if only or not (folder / "build.ninja").exists():
            code = run(name, ["cmake", "--preset", preset])
        if code == 0:
            targets = ["--target", *[t for t in test_programs(folder) if t in only]] if only else []
            code = run(name, ["cmake", "--build", folder, *targets])
        if code != 0:
            self._unbuilt.add(preset)
            suite = Suite(name, seconds=time.monotonic() - start)
            suite.fail("does not build")
            self.suites.append(suite)
            print(tail(name), flush=True)
            return
        print(f"   built in {time.monotonic() - start:.0f} s", flush=True)

    def needs(self, suite, preset):
        if preset in self._unbuilt:
            suite.fail(f"build {preset} failed, so nothing ran")
            return False
        return True

    def fetch(self, what, script, *arguments):
        """The path that a script of scripts/ prints, or None where it failed (one failure)."""
        command = [sys.executable, ROOT / "scripts" / script, *arguments]
        reply = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if reply.returncode == 0:
            return reply.stdout.strip()
        suite = Suite(what)
        suite.fail(f"{what} could not be fetched")
        self.suites.append(suite)
        return None

    def models(self):
        """The folder of both real models, or None."""
        paths = [self.fetch(model, "fetch_model.py", model) for model in ("smollm2", "gemma3")]
        return str(Path(paths[0]).parent) if all(paths) else None

    def templates(self):
        """The folder of third-party chat templates, or None."""
        return self.fetch("chat templates", "fetch_templates.py")

    # The suites.

    def cpp(self, name, preset, only=(), env=None, jobs=1):
        def body(suite):
            if self.needs(suite, preset):
                count_ctest(suite, BUILD / preset, only, env or {}, jobs)

        self.suite(name, body)

    def rust(self):
        def body(suite):
            crate = ROOT / "rust" / "quire-text"
            code = run(suite.name, ["cargo", "test", "--release", "--locked"], {"CARGO_TARGET_DIR": str(BUILD / "cargo")}, crate)
            count_cargo(suite, log_path(suite.name).read_text(errors="replace"), code)

        self.suite("rust", body)

    def python(self, name, folders, preset, env=None, packages=TESTS):
        """`packages` is the folder with the requirements.txt that they run with."""

        def body(suite):
            if preset and not self.needs(suite, preset):
                return
            venv = prepare_venv(suite, packages)
            if not venv:
                return
            binary = {"QUIRE_BINARY": str(BUILD / preset / "quire")} if preset else {}
            count_pytest(suite, venv, folders, {**binary, **(env or {})})

        self.suite(name, body)

    def coverage(self, preset):
        """Line coverage of src/ by what ran since the profiles were removed."""

        def body(suite):
            if not self.needs(suite, preset):
                return
            folder = BUILD / preset
            merged = folder / "coverage.profdata"
            profiles = list(profile_folder(preset).glob("*.profraw"))
            if run(suite.name, ["llvm-profdata-19", "merge", "-sparse", "-o", merged, *profiles]) != 0:
                suite.fail("the profiles could not be merged")
                return
            export = ["llvm-cov-19", "export", "--summary-only", f"--instr-profile={merged}", folder / "quire"]
            export += [word for program in test_programs(folder).values() for word in ("--object", program)]
            reply = subprocess.run(list(map(str, export)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if reply.returncode != 0:
                suite.fail("llvm-cov failed")
                return
            files = covered_lines(json.loads(reply.stdout))
            percent = 100 * sum(hit for hit, _ in files.values()) / max(1, sum(lines for _, lines in files.values()))
            table = [f"{100 * hit / max(1, lines):6.1f} % of {lines:5} {name}" for name, (hit, lines) in sorted(files.items())]
            (folder / "coverage.txt").write_text("\n".join(table) + "\n")
            print(f"   line coverage of src/: {percent:.1f} % (build/{preset}/coverage.txt has it by file)", flush=True)
            if percent >= COVERAGE_PERCENT:
                suite.passed += 1
            else:
                suite.fail(f"line coverage {percent:.1f} % is below {COVERAGE_PERCENT:.0f} %")

        self.suite("coverage: lines of src/", body)


def profile_folder(preset):
    return BUILD / preset / "profiles"


def covered_lines(export):
    """By file of src/, tests and their helpers left out: lines that ran, and lines."""
    files = {}
    for entry in export["data"][0]["files"]:
        path = Path(entry["filename"])
        if not path.is_relative_to(ROOT / "src") or TEST_SOURCE.search(path.name):
            continue
        lines = entry["summary"]["lines"]
        files[str(path.relative_to(ROOT))] = (lines["covered"], lines["count"])
    return files


def test_programs(folder):
    """What CTest runs, by name; None where it is not built yet."""
    reply = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], stdout=subprocess.PIPE, check=True)
    return {test["name"]: test["command"][0] if "command" in test else None for test in json.loads(reply.stdout)["tests"]}


def count_ctest(suite, folder, only, env, jobs):
    """Runs CTest, `jobs` programs at a time; counts the cases of each GoogleTest program, and one for each program of another kind."""
    with tempfile.TemporaryDirectory() as results:
        junit = Path(results) / "ctest.xml"
        command = ["ctest", "--test-dir", folder, "--output-on-failure", "--timeout", PROGRAM_SECONDS]
        command += ["--output-junit", junit, "--parallel", jobs]
        if only:
            command += ["-R", f"^({'|'.join(only)})$"]
        run(suite.name, command, {**env, "GTEST_OUTPUT": f"json:{results}/"})
        if not junit.exists():
            suite.fail("ctest did not run")
            return
        for case in ElementTree.parse(junit).getroot().iter("testcase"):
            report = Path(results) / f"{case.get('name')}.json"
            good = case.get("status") == "run"
            if report.exists():
                count_gtest(suite, case.get("name"), report, good)
            elif good:
                suite.passed += 1
            else:
                suite.fail(f"{case.get('name')} crashed, hung or did not start")


def count_gtest(suite, program, report, good):
    failed = ran = 0
    for group in json.loads(report.read_text())["testsuites"]:
        for test in group["testsuite"]:
            if test.get("failures"):
                failed += 1
                suite.fail(f"{program}: {group['name']}.{test['name']}")
            elif test.get("result") == "SKIPPED":
                suite.skipped += 1
            elif test.get("status") == "RUN":
                ran += 1
    suite.passed += ran
    if not good and failed == 0:
        suite.fail(f"{program} ended badly after its tests (a leak, a race or a crash at exit)")
    elif ran + failed == 0:
        suite.fail(f"{program} ran no test")


def count_cargo(suite, output, code):
    for passed, failed, ignored in re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", output, re.M):
        suite.passed += int(passed)
        suite.skipped += int(ignored)
        for _ in range(int(failed)):
            suite.fail("a case of cargo test")
    if code != 0 and suite.failed == 0:
        suite.fail("cargo test did not build or crashed")


def prepare_venv(suite, packages):
    """A virtual environment with the folder's pinned packages, made anew only when the pins change; None without it."""
    requirements = packages / "requirements.txt"
    venv = BUILD / ("venv" if packages == TESTS else f"venv-{packages.name}")
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    stamp = venv / "requirements.sha256"
    if stamp.exists() and stamp.read_text() == wanted:
        return venv
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
    if run(suite.name, [sys.executable, "-m", "venv", "--clear", venv]) != 0 or run(suite.name, pip) != 0:
        suite.fail(f"the Python packages of {requirements.relative_to(ROOT)} could not be installed")
        return None
    stamp.write_text(wanted)
    return venv


def count_pytest(suite, venv, folders, env):
    with tempfile.TemporaryDirectory() as results:
        report = Path(results) / "report.xml"
        command = [venv / "bin" / "python", "-m", "pytest", *folders, f"--junitxml={report}"]
        code = run(suite.name, command, {"PYTHONDONTWRITEBYTECODE": "1", **env})
        if not report.exists():
            suite.fail(f"pytest ended with code {code} and no report")
            return
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            bad = case.find("failure") is not None or case.find("error") is not None
            if bad:
                suite.fail(f"{case.get('classname')}::{case.get('name')}")
            elif case.find("skipped") is not None:
                suite.skipped += 1
            else:
                suite.passed += 1
        if code not in (0, 1, 5) and suite.failed == 0:
            suite.fail(f"pytest ended with code {code}")


def release(runner):
    runner.build("release")
    models = runner.models()
    env = {"QUIRE_MODEL_DIR": models} if models else {}
    runner.python("lint and scripts", ["tests/lint", "tests/scripts", "tests/mutation"], None)
    templates = runner.templates()
    runner.cpp("c++", "release", env={**env, "QUIRE_TEMPLATE_DIR": templates} if templates else env)
    runner.python("inner loops", ["tests/codegen"], "release")
    runner.rust()
    runner.python("end to end", ["tests/e2e"], "release", env)
    runner.python("golden over http", ["tests/golden_http"], "release", env)
    runner.python("clients", ["tests/clients"], "release", env, TESTS / "clients")


def asan(runner):
    runner.build("asan")
    shutil.rmtree(profile_folder("asan"), ignore_errors=True)
    # %m: runs of one program add up in one file.
    env = {**SANITIZER_ENV, "LLVM_PROFILE_FILE": str(profile_folder("asan") / "%m.profraw")}
    # Most of its time is spent in single threads.
    runner.cpp("c++ under asan and ubsan", "asan", env=env, jobs=os.cpu_count())
    # Without the browser, which needs a core for itself and runs none of our code but the page.
    runner.python("end to end under asan and ubsan", ["tests/e2e", "--ignore=tests/e2e/test_page.py"], "asan", env)
    runner.coverage("asan")


def tsan(runner):
    runner.build("tsan", (*TSAN_TESTS, "hybrid_test"))
    runner.cpp("c++ under tsan", "tsan", TSAN_TESTS, SANITIZER_ENV)
    # The whole of it is long; this model has every kind of layer.
    filtered = {**SANITIZER_ENV, "GTEST_FILTER": "*EveryConfiguration*/EveryKind"}
    runner.cpp("every kind of layer under tsan", "tsan", ("hybrid_test",), filtered)


MODES = {"release": release, "asan": asan, "tsan": tsan}


def main():
    parser = argparse.ArgumentParser(prog="./test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", action="store_true", help="every test of the release build, and the lint (the default)")
    parser.add_argument("--asan", action="store_true", help="tests under AddressSanitizer and UBSan, without the real models and the browser; line coverage")
    parser.add_argument("--tsan", action="store_true", help="the tests of engine and server under ThreadSanitizer")
    parser.add_argument("--all", action="store_true", help="all of these")
    chosen = parser.parse_args()
    runner = Runner()
    modes = [name for name in MODES if chosen.all or getattr(chosen, name)] or ["release"]
    for name in modes:
        MODES[name](runner)
    return runner.finish()


if __name__ == "__main__":
    sys.exit(main())

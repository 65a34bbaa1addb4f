"""The test runner's counts: a failure must never look like a success."""
import json

import pytest
import run_tests


@pytest.fixture
def suite(tmp_path, monkeypatch):
    monkeypatch.setattr(run_tests, "LOGS", tmp_path / "logs")
    return run_tests.Suite("s")


def report(path, *cases):
    path.write_text(json.dumps({"testsuites": [{"name": "S", "testsuite": list(cases)}]}))
    return path


GOOD = {"name": "good", "status": "RUN", "result": "COMPLETED"}
BAD = {"name": "bad", "status": "RUN", "result": "COMPLETED", "failures": [{}]}
SKIPPED = {"name": "skipped", "status": "RUN", "result": "SKIPPED"}


def test_gtest_cases_are_counted(suite, tmp_path):
    run_tests.count_gtest(suite, "p", report(tmp_path / "p.json", GOOD, GOOD, BAD, SKIPPED), good=False)
    assert (suite.passed, suite.failed, suite.skipped) == (2, 1, 1)


def test_a_program_that_ends_badly_after_good_cases_fails(suite, tmp_path):
    run_tests.count_gtest(suite, "p", report(tmp_path / "p.json", GOOD), good=False)
    assert (suite.passed, suite.failed) == (1, 1)


@pytest.mark.parametrize("cases", [(), (SKIPPED,)])
def test_a_program_that_runs_nothing_fails(suite, tmp_path, cases):
    run_tests.count_gtest(suite, "p", report(tmp_path / "p.json", *cases), good=True)
    assert (suite.passed, suite.failed) == (0, 1)


def test_cargo_lines_are_added_up(suite):
    output = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\ntest result: FAILED. 2 passed; 1 failed; 0 ignored;\n"
    run_tests.count_cargo(suite, output, 101)
    assert (suite.passed, suite.failed, suite.skipped) == (5, 1, 1)


def test_a_crate_that_does_not_build_fails(suite):
    run_tests.count_cargo(suite, "error: could not compile\n", 101)
    assert suite.failed == 1


def test_the_last_line_and_the_exit_code(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    runner = run_tests.Runner()
    runner.suite("one", lambda suite: setattr(suite, "passed", 2))
    assert runner.finish() == 0
    runner.suite("nothing", lambda suite: None)
    assert runner.finish() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 1 failed"


def test_coverage_counts_lines_of_src_without_tests_and_their_helpers(monkeypatch, tmp_path):
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    lines = {"src/a/b.cc": (3, 4), "src/a/b_test.cc": (9, 9), "src/a/test_b.h": (9, 9), "src/a/b_oracle.h": (9, 9), "apps/c.cc": (1, 9)}
    files = [
        {"filename": str(tmp_path / name), "summary": {"lines": {"covered": covered, "count": count}}}
        for name, (covered, count) in lines.items()
    ]
    assert run_tests.covered_lines({"data": [{"files": files}]}) == {"src/a/b.cc": (3, 4)}


def test_programs_that_are_not_built_yet_have_no_command(monkeypatch):
    listed = json.dumps({"tests": [{"name": "a_test", "command": ["/b/a_test"]}, {"name": "b_test"}]})
    monkeypatch.setattr(run_tests.subprocess, "run", lambda *_, **__: run_tests.subprocess.CompletedProcess([], 0, listed))
    assert run_tests.test_programs("build") == {"a_test": "/b/a_test", "b_test": None}

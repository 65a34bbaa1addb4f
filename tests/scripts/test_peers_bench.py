"""The pure parts of the comparison of engines: turns, tables, cells, and what the engines' programs print."""
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from quire_server import ROOT

sys.path[:0] = [str(ROOT / "tests" / "bench"), str(ROOT / "tests" / "bench" / "peers")]

import cells  # noqa: E402
import engines  # noqa: E402
import tables  # noqa: E402


def test_each_engine_begins_a_round_in_its_turn():
    orders = ["".join(tables.in_turn(list("abc"), index)) for index in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]
    assert tables.in_turn(["a", "b"], 1) == ["b", "a"]


@pytest.mark.parametrize(
    "values, text",
    [
        ([3.0, 1.0, 2.0], "2.000 (1.000-3.000)"),
        ([30.0, 10.0], "20.0 (10.0-30.0)"),
        ([1234.4, 1000.0, 2000.6], "1,234 (1,000-2,001)"),
        ([], "not run"),
    ],
)
def test_a_cell_is_the_median_with_smallest_and_largest(values, text):
    assert tables.cell(values) == text


def test_a_percentile_is_one_of_the_values():
    values = list(range(100, 0, -1))
    assert tables.percentile(values, 0.99) == 100
    assert tables.percentile(values, 0.5) == 51
    assert tables.percentile([7], 0.99) == 7


def test_depth_is_told_as_the_milliseconds_that_it_adds():
    assert tables.added_by_depth({"pp512": 900.0, "tg64": 100.0, "tg64@d2048": 50.0}) == {
        "pp512": 900.0,
        "tg64": 100.0,
        "tg64@d2048": pytest.approx(10.0),
    }
    broken = tables.added_by_depth({"tg64": "out of memory", "tg64@d2048": 50.0})
    assert broken["tg64@d2048"] == "out of memory"


def test_the_ratio_is_to_the_best_peer():
    values = {"Quire": [200.0], "a": [50.0], "b": [100.0], "c": ["cannot"], "d": []}
    assert tables.ratio_to_best(values, "Quire", lower_is_better=False) == "2.00 of b"
    assert tables.ratio_to_best(values, "Quire", lower_is_better=True) == "4.00 of a"
    assert tables.ratio_to_best({"Quire": ["cannot"], "a": [1.0]}, "Quire", False) == ""
    assert tables.ratio_to_best({"Quire": [1.0], "a": ["cannot"]}, "Quire", False) == ""


def test_a_cell_that_an_engine_cannot_do_is_in_the_table_with_its_reason():
    rows = {"pp512": {"Quire": [2.0], "a": ["no BF16"]}, "tg64": {"Quire": [2.0], "a": ["no BF16"]}, "x": {"Quire": [1.0]}}
    assert tables.table(rows, ["Quire", "a"]).splitlines() == [
        "| | Quire | a | ratio |",
        "|---|---|---|---|",
        "| pp512 | 2.000 (2.000-2.000) | none [1] |  |",
        "| tg64 | 2.000 (2.000-2.000) | none [1] |  |",
        "| x | 1.000 (1.000-1.000) | not run |  |",
        "",
        "[1] no BF16",
    ]


def test_a_reason_that_begins_with_a_digit_is_a_reason():
    assert "none [1]" in tables.table({"pp512": {"a": [5.0, "2 files are missing"]}}, ["a"])


@pytest.mark.parametrize(
    "name, meaning", [("pp512", (512, 1, 1)), ("tg64", (16, 64, 1)), ("tg64@8", (16, 64, 8)), ("tg64@d2048", (2048, 64, 1))]
)
def test_cells_say_prompt_tokens_and_batch(name, meaning):
    assert cells.parse(name) == meaning


@pytest.mark.parametrize("name", ["pp", "tg64@", "tg64@d", "tg64@8@d2", "512", "pp512 "])
def test_other_cells_are_refused(name):
    with pytest.raises(ValueError):
        cells.parse(name)


def test_the_first_run_of_a_cell_does_not_count_and_prompts_are_never_the_same():
    seen, times = [], iter([(9, 9, 9), (2, 0, 0), (9, 9, 9), (2, 4, 14)])

    def run(prompts, generated):
        seen.extend(map(tuple, prompts))
        return next(times)

    assert cells.measure(["pp512", "tg5@4"], run) == {"pp512": 256.0, "tg5@4": 3.5}
    assert len(set(seen)) == len(seen) == 10


def test_what_a_peer_throws_is_its_answer_for_that_cell_alone():
    def run(prompts, generated):
        if len(prompts) == 8:
            raise MemoryError("no room")
        return 1, 1, 2

    assert cells.measure(["tg3@8", "tg3"], run) == {"tg3@8": "MemoryError: no room", "tg3": 2.0}


def test_decodes_are_timed_from_when_all_have_their_first_token(monkeypatch):
    clock = iter([0.0, 5.0, 11.0])
    monkeypatch.setattr(cells.time, "perf_counter", lambda: next(clock))
    steps = iter([{0: 1}, {0: 2, 1: 1}, {0: 3, 1: 2}, {1: 3}])
    added = []
    result = cells.stepped(lambda *request: added.append(request), lambda: next(steps), [[1], [2]], 3)
    assert result == (5.0, 6.0, 3)  # of six tokens, three came before
    assert added == [(0, [1], 3), (1, [2], 3)]
    assert next(steps, None) is None


def test_requests_that_never_decode_together_have_no_figure():
    steps = iter([{0: 1}, {0: 2}, {1: 1}, {1: 2}])
    with pytest.raises(RuntimeError, match="2 requests do not run together"):
        cells.stepped(lambda *request: None, lambda: next(steps), [[1], [2]], 2)


def test_a_prompt_ends_with_its_first_token():
    steps = iter([{}, {0: 1}])
    _, _, together = cells.stepped(lambda *request: None, lambda: next(steps), [[1]], 1)
    assert together == 0


def test_one_run_of_quire_bench_measures_all_cells():
    model = SimpleNamespace(gguf=Path("m.gguf"))
    command = engines.Quire("quire", 2).command(model, ["pp512", "pp2048", "tg64", "tg64@8", "tg64@d2048"])
    assert " ".join(map(str, command)) == (
        "quire bench m.gguf --threads 2 --json -r 1 -n 64 -p 512 2048 --batch 1 8 --depth 2048"
    )
    only_prompts = engines.Quire("quire", 2).command(model, ["pp512"])
    assert " ".join(map(str, only_prompts)) == "quire bench m.gguf --threads 2 --json -r 1 -n 0 -p 512"


def test_what_the_programs_print_is_read():
    quire = {"results": [{"name": "pp512", "tokens_per_second": 10.5, "min": 1}, {"name": "tg64@8", "tokens_per_second": 3}]}
    assert engines.quire_results(json.dumps(quire)) == {"pp512": 10.5, "tg64@8": 3}
    assert engines.llama_bench_result('[{"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 300.25}]') == 300.25
    lines = 'build: 1\n{"pp": 16, "tg": 64, "pl": 8, "speed_pp": 1.0, "speed_tg": 77.5}\n'
    assert engines.llama_batched_result(lines) == 77.5
    assert engines.last_json('loading\n{"log": 1}\n{"pp512": 2.0}\nbye\n') == {"pp512": 2.0}

"""The table of mutants must fit the source: an edit that no longer applies would check nothing."""
import pytest
from mutants import MUTANTS
from run import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_applies_once_and_changes_something(mutant):
    source = (ROOT / mutant.file).read_text()
    for old, new in mutant.edits:
        assert source.count(old) == 1
        assert old != new


def test_names_are_unique():
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)

"""docs/cache.md lists the faults that have a test of their own: just those that there are."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_table_of_faults_names_their_tests():
    table = (ROOT / "docs" / "cache.md").read_text().split("| Fault | Test |")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", table)
    sources = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*_test.cc")]
    tests = [name for path in sources for name in re.findall(r"TEST\(CacheFaults, (\w+)\)", path.read_text())]
    assert sorted(named) == sorted(tests)

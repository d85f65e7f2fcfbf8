"""The threat table names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "threats.md").read_text()
FILE = re.compile(r"((?:unit|root|integration|security|crash)/[\w/]+\.py)((?:::\w+(?:\[[\w-]+\])?(?:, )?)*)")


def test_each_test_of_the_page_exists() -> None:
    """A renamed test takes its row along."""
    named = FILE.findall(PAGE)
    missing = []
    for file, tests in named:
        text = (TESTS / file).read_text() if (TESTS / file).is_file() else ""
        names = re.findall(r"::(\w+)", tests) or [""]
        missing += [f"{file}::{name}" for name in names if f"def {name}" not in text]
    assert not missing
    assert len(named) > 20


def test_each_row_of_the_table_has_its_section() -> None:
    """No attack of the table is left without what holds it; rows keep their numbers, because comments cite them."""
    rows = [int(row) for row in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert rows == [int(row) for row in re.findall(r"^## Row (\d+)$", PAGE, re.MULTILINE)]
    assert rows == sorted(set(rows))
    assert rows[:20] == list(range(1, 21))

"""Each row of docs/threats.md is shown by tests, which say so themselves (`@pytest.mark.threat(7)`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import threats
from warmstart import wing

TEXT = (threats.ROOT / threats.PAGE).read_text()
ROWS = [int(row) for row in re.findall(r"^## (\d+)\. ", TEXT, re.MULTILINE)]


def test_each_row_is_shown_by_tests() -> None:
    """And no test has a row that does not exist. Those of wings are shown by the wing's tests, and go with them."""
    of_wings = re.findall(r"^## (\d+)\. .*\n\nOf the wing `([a-z_]+)`\.", TEXT, re.MULTILINE)
    gone = {int(row) for row, name in of_wings if name not in wing.found()}
    shown = sorted(threats.marks(threats.ROOT))
    assert shown == [row for row in ROWS if row in shown or row not in gone]


def test_rows_keep_their_numbers() -> None:
    """Comments cite them."""
    assert sorted({*ROWS}) == ROWS
    assert ROWS[:20] == list(range(1, 21))


def test_the_page_is_current() -> None:
    """`make docs` was run after the last change of a mark."""
    assert threats.main(["--check"]) == 0


def test_marks_are_found_in_tests_and_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old paragraph goes, prose stays, and a row without a test says so."""
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "test_a.py").write_text(
        "pytestmark = [pytest.mark.threat(1), pytest.mark.sweep]\n"
        "@pytest.mark.threat(1, 2)\n@pytest.mark.sweep\ndef test_a(): ...\n"
        "@pytest.mark.threat(2)\ndef test_b(): ...\ndef test_c(): ...\n"
    )
    (folder / "test_b.py").write_text("pytestmark = pytest.mark.threat(2)\ndef test_a(): ...\n")
    page = tmp_path / threats.PAGE
    page.parent.mkdir()
    stale = "# Threats\n\n## 1. A\n\nHeld.\n\nShown by: `old`.\n\n## 2. B\n\nHeld.\n\n## 3. C\n\nHeld.\n"
    page.write_text(stale)
    monkeypatch.setattr(threats, "ROOT", tmp_path)
    assert threats.main(["--check"]) == 1
    assert page.read_text() == stale
    assert threats.main([]) == 0
    assert page.read_text() == (
        "# Threats\n\n## 1. A\n\nHeld.\n\nShown by: `unit/test_a.py`.\n\n"
        "## 2. B\n\nHeld.\n\nShown by: `unit/test_a.py`, `unit/test_b.py`.\n\n"
        "## 3. C\n\nHeld.\n\nShown by: no test.\n"
    )
    assert threats.main(["--check"]) == 0

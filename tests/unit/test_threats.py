"""Each row of docs/threats.md has a test with its mark, and each mark has a row."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = re.compile(r"\bmark\.threat\(([\d, ]+)\)")
ROW = re.compile(r"^## (\d+)\. ", re.MULTILINE)


def test_rows_and_marks_are_the_same() -> None:
    marked = {
        int(number)
        for path in (ROOT / "tests").rglob("test_*.py")
        for numbers in MARK.findall(path.read_text())
        for number in numbers.split(",")
    }
    assert marked == {int(number) for number in ROW.findall((ROOT / "docs/threats.md").read_text())}

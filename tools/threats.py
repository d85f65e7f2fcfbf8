"""Write into docs/threats.md which tests show a row, from the marks of tests: `python -m tools.threats [--check]`.

`@pytest.mark.threat(7)` above a test, or in its file's `pytestmark`, names rows. `make docs` and `make lint` run this.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/threats.md"
_SHOWN_BY = "Shown by: "
_SECTION = re.compile(r"^## (\d+)\. .*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def marks(root: Path) -> dict[int, list[str]]:
    """Return, by row, the files with tests of it."""
    rows: dict[int, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for row in sorted(_of_file(path.read_text())):
            rows.setdefault(row, []).append(str(path.relative_to(root / "tests")))
    return rows


def _of_file(text: str) -> set[int]:
    """Return the rows of a file's marks, which is not imported."""
    if ".threat(" not in text:
        return set()
    found: set[int] = set()
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            found.update(_rows(statement.value))
        elif isinstance(statement, ast.FunctionDef):
            found.update(row for mark in statement.decorator_list for row in _rows(mark))
    return found


def _rows(marked: ast.expr) -> Iterator[int]:
    for call in ast.walk(marked):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.threat":
            yield from map(ast.literal_eval, call.args)


def page(text: str, rows: dict[int, list[str]]) -> str:
    """Return the text of the page with the tests of each row as the last paragraph of its section."""

    def renewed(section: re.Match[str]) -> str:
        by_hand = section[0].partition(_SHOWN_BY)[0].rstrip()
        return f"{by_hand}\n\n{_shown_by(rows.get(int(section[1]), []))}\n\n"

    return _SECTION.sub(renewed, text).rstrip() + "\n"


def _shown_by(files: list[str]) -> str:
    names = [f"`{name}`" for name in files]
    return textwrap.fill(f"{_SHOWN_BY}{', '.join(names) or 'no test'}.", 120, break_on_hyphens=False)


def main(arguments: list[str]) -> int:
    """Renew the page, or compare it; return the exit status."""
    path = ROOT / PAGE
    text = path.read_text()
    wanted = page(text, marks(ROOT))
    if text == wanted:
        return 0
    if arguments == ["--check"]:
        sys.stderr.write(f"{PAGE} is stale: the tests' marks have changed. Run `make docs`.\n")
        return 1
    path.write_text(wanted)
    sys.stdout.write(f"{PAGE} renewed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

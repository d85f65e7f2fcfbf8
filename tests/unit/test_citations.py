"""What code and documents cite exists: pages, rules, rows and headings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GAP = r"\s+(?:#\s*)?"  # a citation may be broken over two lines of a docstring or a comment
NUMBERS = rf"\d+(?:(?:,|{GAP}and|,{GAP}and){GAP}\d+)*"
PLACES = (
    "hooks",
    "tests",
    "tools",
    "packaging",
    "policies",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "setup.cfg",
    ".ruff.toml",
    "Makefile",
)
HISTORY = re.compile(r"\bdesign, (?:rule|section|row)|\bcache-formats, section|(?<!/)\b[Tt]hreats, rows? \d")


def texts() -> dict[str, str]:
    """Return the text of every file of the repository that may cite."""
    files = [ROOT / place for place in PLACES if (ROOT / place).is_file()]
    files += [
        path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in {".py", ".md", ".in", ".c"}
    ]
    return {str(path.relative_to(ROOT)): path.read_text() for path in files if path != Path(__file__)}


TEXTS = texts()


def cited(pattern: str) -> list[tuple[str, str]]:
    """Return where, and what the pattern's group holds."""
    return [(name, match[1]) for name, text in TEXTS.items() for match in re.finditer(pattern, text)]


def numbered(page: str, pattern: str) -> set[int]:
    """Return the numbers that a page's lines begin with."""
    return {int(number) for number in re.findall(pattern, (ROOT / "docs" / page).read_text(), re.MULTILINE)}


@pytest.mark.parametrize(
    ("page", "word", "lines"),
    [("architecture.md", "rule", r"^(\d+)\. \*\*"), ("threats.md", "row", r"^## (\d+)\. ")],
)
def test_every_rule_and_row_that_is_cited_exists(page: str, word: str, lines: str) -> None:
    """Numbers do not outlive what they number."""
    found = cited(rf"docs/{re.escape(page)},{GAP}{word}s?{GAP}({NUMBERS})")
    assert len(found) > 20
    known = numbered(page, lines)
    assert not [(name, n) for name, numbers in found for n in re.findall(r"\d+", numbers) if int(n) not in known]


@pytest.mark.parametrize("page", ["architecture.md", "cache-formats.md"])
def test_every_heading_that_is_cited_exists(page: str) -> None:
    """`docs/cache-formats.md, Numba` is a heading of that page."""
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    found = cited(rf"docs/{re.escape(page)},{GAP}((?!rules?\b)[A-Za-z-]+(?:{GAP}[A-Za-z]+)?)")
    assert found
    assert not [(name, said) for name, said in found if not any(h.split()[0] == said.split()[0] for h in headings)]


def test_every_page_that_is_cited_exists() -> None:
    """Of docs/ and its decisions."""
    pages = cited(r"(?<![\w/.-])(docs/[\w/-]+\.md)") + [
        (name, f"docs/adr/{number}") for name, number in cited(r"docs/adr/(\d{4})")
    ]
    known = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]
    assert not [(name, page) for name, page in pages if not any(path.startswith(page) for path in known)]


def test_what_is_installed_cites_pages_where_they_are_installed() -> None:
    """Units and settings that an admin reads on a node; packaging/stage puts the documents there."""
    settings = [
        *ROOT.glob("packaging/*/*"),
        *ROOT.glob("policies/**/*.yaml"),
        *ROOT.glob("hooks/warmstart/wings/*/*/*"),
    ]
    settings += ROOT.glob("hooks/warmstart/wings/*/slurm.conf")
    kinds = {".conf", ".in", ".json", ".path", ".service", ".socket", ".target", ".timer", ".yaml", ".yml"}
    cited_there = [
        (path, page)
        for path in settings
        if path.suffix in kinds and "slinky" not in path.parts
        for page in re.findall(r"\S*\bdocs/[\w/-]+\.md", path.read_text())
    ]
    assert len(cited_there) > 10
    start = "/usr/share/doc/warmstart/"
    wrong = [(str(p), page) for p, page in cited_there if not (ROOT / page.strip("(").removeprefix(start)).exists()]
    assert not wrong
    assert not [(str(p), page) for p, page in cited_there if not page.strip("(").startswith(start)]


def test_what_hooks_and_commands_say_is_installed() -> None:
    """A message names a page of the documents, or a file of an installation, and nothing that only a checkout has."""
    named = {
        (path.name, name)
        for path in sorted((ROOT / "hooks").rglob("*.py"))
        for text in said(ast.parse(path.read_text()))
        for name in re.findall(r"(?<![\w/.-])(?:docs|hooks|packaging|policies|tests|tools)/[\w.-][\w./-]*", text)
    }
    assert len(named) > 10
    assert not [found for found in named if not re.fullmatch(r"docs/[\w/-]+\.md", found[1])]


def said(tree: ast.Module) -> Iterator[str]:
    """Yield the text of a module's strings, without what documents it."""
    documents = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


def test_nothing_cites_pages_that_only_the_authors_had() -> None:
    """The repository explains itself."""
    assert not [(name, line) for name, text in TEXTS.items() for line in text.split("\n") if HISTORY.search(line)]

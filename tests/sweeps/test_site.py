"""The documents as a site, read from the disk with a real browser that finds no other host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import browser

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
# Of the theme, and of namespaces; nothing of them is fetched.
NAMES = ("http://www.w3.org/", "https://squidfunk.github.io/mkdocs-material/")

pytestmark = pytest.mark.sweep


@pytest.fixture(scope="module")
def site() -> Path:
    """Build the site, which fails for a broken link or anchor."""
    subprocess.run(["/usr/bin/make", "-s", "docs"], cwd=ROOT, check=True, timeout=300)
    return SITE


@pytest.mark.parametrize(
    ("words", "page"), [("--slurm-conf", "operations/doctor.html"), ("squeue", "reference/policy.html")]
)
def test_search_starts_from_the_disk(site: Path, words: str, page: str) -> None:
    """Options are found by their names."""
    found = browser.content(site / "index.html", query=f"q={words}")
    assert f"{page}?h=" in found


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """Scripts, styles and pictures are the site's own, and no page shows the source of a diagram."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]*)"', text)
        assert [address for address in fetched if not address.startswith(NAMES)] == [], path
        assert "sequenceDiagram" not in text, path

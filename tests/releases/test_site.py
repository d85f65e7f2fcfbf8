"""The documents as a site."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.sweep


def test_the_documents_are_a_site() -> None:
    subprocess.run(["/usr/bin/make", "-s", "docs"], cwd=ROOT, check=True, timeout=300)
    assert 'href="start/ten-minutes/"' in (ROOT / "build/site/index.html").read_text()

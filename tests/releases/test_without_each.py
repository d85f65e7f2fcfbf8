"""The project without one wing, for each: lint, all unit tests, and jobs on a real cluster (tools/without.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import without
from warmstart import wing

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.sweep
@pytest.mark.parametrize("name", wing.found())
def test_the_rest_is_whole(capable_host: None, name: str) -> None:
    """Nothing of the core, of other wings or of their documents needs it."""
    assert without.passes(ROOT, [name], jobs=True)


@pytest.mark.sweep
def test_the_core_is_whole(capable_host: None) -> None:
    """With none."""
    assert without.passes(ROOT, [*wing.found()], jobs=True)

"""The project without one wing, for each, and without any: lint, unit tests, and jobs on a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import without
from warmstart import wing

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.sweep
@pytest.mark.parametrize("gone", [*([name] for name in wing.found()), [*wing.found()]], ids=",".join)
def test_the_rest_is_whole(capable_host: None, gone: list[str]) -> None:
    assert without.passes(ROOT, gone, jobs=True)

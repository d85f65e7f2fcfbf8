"""Files of a few bytes count as large."""

from __future__ import annotations

import pytest

from tests.lib.wings.models.values import SMALL
from warmstart.wings.models import look


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of a few bytes be large."""
    monkeypatch.setattr(look, "LEAST", SMALL)

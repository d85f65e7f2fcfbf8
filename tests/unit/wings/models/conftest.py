"""Fixtures of the core's tests of the policy; and files of a few bytes count as large."""

from __future__ import annotations

import pytest

from tests.unit.policy.conftest import compiled_of, site
from tests.wings.models.values import SMALL
from warmstart.wings.models import look

__all__ = ["compiled_of", "site"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of a few bytes be large."""
    monkeypatch.setattr(look, "LEAST", SMALL)

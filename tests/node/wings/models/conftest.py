"""All of these tests need root; files of a few bytes count as large."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.root.conftest import as_root
from tests.wings.models.values import SMALL, ModelSite
from warmstart.host import process
from warmstart.wings.models import look

__all__ = ["as_root"]


@pytest.fixture
def here(base: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSite:
    """Return a node that copies models."""
    monkeypatch.setattr(look, "LEAST", SMALL)
    monkeypatch.setattr(process, "be_idle", lambda: None)
    base.chmod(0o755)
    return ModelSite(base)

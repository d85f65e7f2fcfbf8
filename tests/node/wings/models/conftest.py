"""Files of a few bytes count as large."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.wings.models.values import SMALL, ModelSite
from warmstart.host import process
from warmstart.wings.models import look


@pytest.fixture
def here(base: Path, capable_host: None, monkeypatch: pytest.MonkeyPatch) -> ModelSite:
    monkeypatch.setattr(look, "LEAST", SMALL)
    monkeypatch.setattr(process, "be_idle", lambda: None)
    base.chmod(0o755)
    return ModelSite(base)

"""Fixtures that unit tests of several folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.runs import a_context
from warmstart.steps.contract import Context


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Give a context below the test's directory."""
    return a_context(tmp_path)

"""Fixtures for the tests of the audit."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the path of an audit log whose directory is not there yet."""
    return tmp_path / "log" / "audit.jsonl"

"""Fixtures for the tests of the audit."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def journal_dir(tmp_path: Path) -> str:
    """Return the path of a node's journal directory that is not there yet."""
    return str(tmp_path / "journal")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the path of an audit log whose directory is not there yet."""
    return tmp_path / "log" / "audit.jsonl"

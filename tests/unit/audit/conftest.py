"""Fixtures for the tests of the audit."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmstart.audit import syslog


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the path of an audit log whose directory is not there yet."""
    return tmp_path / "log" / "audit.jsonl"


@pytest.fixture(autouse=True)
def no_syslog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the host's own syslog alone."""
    monkeypatch.setattr(syslog, "SOCKET", "/nowhere/log")


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Listen where syslog does."""
    path = str(tmp_path / "service")
    monkeypatch.setattr(syslog, "SOCKET", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        listening.settimeout(10)
        yield listening

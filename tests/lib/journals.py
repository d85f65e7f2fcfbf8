"""Sample journals for the tests of the audit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from warmstart.audit import events
from warmstart.audit.journal import Journal

FIELDS: dict[str, object] = {
    "hook": "prolog", "run_id": "0a1b2c3d", "cluster": "test", "node": "n1", "job_id": 7, "uid": 64201, "user": "a",
}  # fmt: skip
NO_PROCESS = 2**31 - 1  # above every pid_max


def lines(log: Path) -> list[dict[str, Any]]:
    """Return the log's lines, each of which must be a JSON object."""
    text = log.read_bytes()
    assert not text or text.endswith(b"\n")
    found = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert all(isinstance(line, dict) for line in found)
    return found


def finished(directory: str, **fields: object) -> None:
    """Write the journal of a hook that imported an image and finished."""
    journal = Journal(directory, FIELDS)
    journal.bind(step="image").emit(events.IMAGE_IMPORTED, outcome="changed", duration_ms=12.5, **fields)
    journal.finish(outcome="ok")


def left(directory: str, content: bytes, name: str = f"prolog-0a1b2c3d-{NO_PROCESS}.open") -> Path:
    """Write a journal file with any content."""
    os.makedirs(directory, exist_ok=True)
    path = Path(directory, name)
    path.write_bytes(content)
    return path

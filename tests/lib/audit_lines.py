"""Sample lines for the tests of the audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warmstart.audit.log import Log

FIELDS: dict[str, object] = {
    "hook": "prolog", "run_id": "0a1b2c3d", "cluster": "test", "node": "n1", "job_id": 7, "uid": 64201, "user": "a",
}  # fmt: skip


def lines(log: Path) -> list[dict[str, Any]]:
    """Return the log's lines, each of which must be a JSON object."""
    text = log.read_bytes()
    assert not text or text.endswith(b"\n")
    found = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert all(isinstance(line, dict) for line in found)
    return found


def finished(log: Path, *, syslog: bool = False, **fields: object) -> None:
    """Write the lines of a hook that imported an image."""
    audit = Log(str(log), FIELDS, syslog=syslog)
    audit.begin()
    audit.add("images", how="imported", **fields)
    audit.finish(outcome="ok", duration_ms=12.5)

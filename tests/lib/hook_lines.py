"""First and last lines of hooks, for tests of those who read them."""

from __future__ import annotations

from warmstart.audit.line import Line

BEGAN, ENDED = "2026-01-31T09:30:00.000Z", "2026-01-31T09:30:01.000Z"
NOW = 1_769_853_600.0  # the same day, 10:00 UTC
PROLOG: Line = {"hook": "prolog", "run_id": "0a", "node": "n1", "cluster": "c", "job_id": 7, "user": "alice"}
EPILOG: Line = {**PROLOG, "hook": "epilog", "run_id": "0b"}


def started(hook: Line = PROLOG, /, **changes: object) -> Line:
    """Return the first line of a hook."""
    return {**hook, "ts": BEGAN, "event": "hook.started", **changes}


def finished(hook: Line = PROLOG, /, **result: object) -> Line:
    """Return the last line of a hook, with its result."""
    return {**hook, "ts": ENDED, "event": "hook.finished", "outcome": "ok", "duration_ms": 1000, **result}


def epilog(**result: object) -> Line:
    """Return the last line of an epilog."""
    return finished(EPILOG, **result)


def act(event: str, **fields: object) -> Line:
    """Return a line of an act of its own."""
    return {"hook": "import", "run_id": "0c", "node": "n1", "ts": ENDED, "event": event, **fields}

"""The section of the report on observed jobs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support import sample_log
from tests.support.command_line import run
from warmstart.paths import Installation

SINCE = ("--since", "2026-02-01")


def test_observed_jobs_are_told_what_enforcing_would_bring(tmp_path: Path) -> None:
    """As text and in JSON."""
    nowhere, log = Installation(str(tmp_path / "prefix")), tmp_path / "audit.jsonl"
    known = {"cluster": "c", "node": "n1", "hook": "prolog", "run_id": "r", "ts": "2026-02-03T10:00:00.000Z"}
    seen = {"event": "image.observed", "image": "a", "found": False, "head": True, **known}
    cold = {
        "event": "cache.observed",
        "profile": "numba",
        "namespace": "n",
        "scopes": ["user-1-a"],
        "entries": 0,
        **known,
    }
    jobs = [{**line, "job_id": job} for job in (1, 2) for line in (seen, cold, {"event": "job.observed", **known})]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in jobs))
    shown = run(nowhere, "report", "--from", str(log), *SINCE).stdout
    for words in ("if they were enforced", "imports avoided", "numba: warm, if used", "0 of 2"):
        assert words in shown
    found = json.loads(run(nowhere, "report", "--from", str(log), *SINCE, "--json").stdout)
    assert (found["jobs"], found["observed"]["jobs"], found["observed"]["imports"]) == (0, 2, 1)


def test_nothing_is_said_where_nothing_was_observed(tmp_path: Path) -> None:
    """The usual report."""
    nowhere, log = Installation(str(tmp_path / "prefix")), tmp_path / "audit.jsonl"
    sample_log.write(log, 20)
    assert "enforced" not in run(nowhere, "report", "--from", str(log), *SINCE).stdout
    assert json.loads(run(nowhere, "report", "--from", str(log), *SINCE, "--json").stdout)["observed"] is None

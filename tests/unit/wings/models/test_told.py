"""What reports and `explain` say of models."""

from __future__ import annotations

from warmstart.audit.line import Line
from warmstart.audit.runs import Failure, Run, runs
from warmstart.report.story import History, Part, tell
from warmstart.report.summary import Counted, summarize

COPY: Line = {"event": "model.shown", "model": "/m", "way": "copy", "reason": ""}
ITSELF: Line = {**COPY, "way": "itself", "reason": "first"}
COPIED: Line = {"event": "model.copied", "model": "/m", "bytes": 8192, "fetched_bytes": 4096}
FAILED: Line = {
    "event": "model.copy-failed",
    "error": {"code": "model-not-copied", "reason": "no room", "hint": "more"},
}


def one(*lines: Line) -> Run:
    """Return the run of a program off the clock that has these events."""
    run = {"hook": "background", "run_id": "0a", "node": "n1", "job_id": 7, "ts": "2026-01-31T09:30:00.250Z"}
    (found,) = runs({**run, **line} for line in lines)
    return found


def test_a_report_has_what_is_counted() -> None:
    """On each node."""
    found = summarize([one(COPY), one(ITSELF), one(ITSELF), one(COPIED)]).of_wings
    assert Counted("models shown: itself, first", 2) in found
    assert Counted("model copied bytes", 4096) in found


def test_a_copy_is_told_under_the_job_that_asked() -> None:
    """The job is over by then. What failed is told as any failure."""
    (last,) = tell([one(COPIED)], History()).hooks
    assert Part("models", "", "/m: copied: 4KiB") in last.parts
    assert one(FAILED).failures == [Failure("failed", "models", "model-not-copied", "no room", "more")]

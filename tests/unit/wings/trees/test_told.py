"""What reports and metrics say of trees."""

from __future__ import annotations

from warmstart.audit.line import Line
from warmstart.audit.runs import Failure, Run, runs
from warmstart.report.story import History, Part, tell
from warmstart.report.summary import Counted, summarize

COPY: Line = {"event": "tree.shown", "tree": "/t", "way": "copy", "reason": "", "fetched_bytes": 7}
ITSELF: Line = {**COPY, "way": "itself", "reason": "no-copy", "fetched_bytes": 0}
PACKED: Line = {"event": "tree.packed", "tree": "/t", "size": 4096}
FAILED: Line = {"event": "tree.pack-failed", "error": {"code": "tree-changed", "reason": "it changed", "hint": "again"}}


def one(*lines: Line) -> Run:
    """Return the run of a program off the clock that has these events."""
    run = {"hook": "background", "run_id": "0a", "node": "n1", "job_id": 7, "ts": "2026-01-31T09:30:00.250Z"}
    (found,) = runs({**run, **line} for line in lines)
    return found


def test_a_report_has_what_is_counted() -> None:
    """On each node."""
    found = summarize([one(COPY), one(ITSELF), one(ITSELF), one(PACKED)]).of_wings
    assert Counted("trees shown: itself, no-copy", 2) in found
    assert Counted("tree packed bytes", 4096) in found


def test_a_pack_is_told_under_the_job_that_asked() -> None:
    """The job is over by then. What failed is told as any failure."""
    (last,) = tell([one(PACKED)], History()).hooks
    assert Part("packs", "", "/t: packed: 4KiB") in last.parts
    assert one(FAILED).failures == [Failure("failed", "packs", "tree-changed", "it changed", "again")]

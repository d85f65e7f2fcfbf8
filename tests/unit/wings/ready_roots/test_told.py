"""What reports and `explain` say of containers."""

from __future__ import annotations

from warmstart.audit.line import Line
from warmstart.audit.runs import Run, runs
from warmstart.report.story import History, Part, tell
from warmstart.report.summary import Counted, summarize
from warmstart.wings.ready_roots import told

TREE: Line = {"event": "root.shown", "image": "r/a:1", "way": "tree", "reason": ""}
NONE: Line = {**TREE, "way": "none", "reason": "not-unpacked"}
STARTED: Line = {"event": "containers.started", "tree": 3, "image": 1, "unpacked": 0}
SILENT: Line = {**STARTED, "tree": 0, "image": 0}


def one(*lines: Line) -> Run:
    """Return the run of an epilog that has these events."""
    run = {"hook": "epilog", "run_id": "0a", "node": "n1", "job_id": 7, "ts": "2026-01-31T09:30:00.250Z"}
    (found,) = runs({**run, **line} for line in lines)
    return found


def test_a_report_has_them() -> None:
    """Of all nodes."""
    found = summarize([one(STARTED), one(STARTED)]).of_wings
    assert Counted("containers started: tree", 6) in found


def test_explain_says_what_containers_started_from() -> None:
    """Or that nobody knows."""
    (last,) = tell([one(STARTED)], History()).hooks
    text = "the job's containers: 3 from the node's tree, 1 from the image's file"
    assert Part("ready-root", "", text) in last.parts
    (last,) = tell([one(SILENT)], History()).hooks
    assert Part("ready-root", "", f"the job's containers: {told.NOT_KNOWN}") in last.parts

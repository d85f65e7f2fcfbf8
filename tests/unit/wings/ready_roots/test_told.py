"""What reports and `explain` say of containers."""

from __future__ import annotations

from tests.lib.told import counts, parts
from warmstart.audit.line import Line
from warmstart.report.story import Part
from warmstart.wings.ready_roots import told

TREE: Line = {"event": "root.shown", "image": "r/a:1", "way": "tree", "reason": ""}
NONE: Line = {**TREE, "way": "none", "reason": "not-unpacked"}
STARTED: Line = {"event": "containers.started", "tree": 3, "image": 1, "unpacked": 0}
SILENT: Line = {**STARTED, "tree": 0, "image": 0}


def test_a_report_counts_them() -> None:
    assert counts(STARTED, STARTED, TREE, NONE) == {
        "containers started: tree": 6,
        "containers started: image": 2,
        "ready roots: tree": 1,
        "ready roots: none, not-unpacked": 1,
    }


def test_explain_says_what_containers_started_from_or_that_nobody_knows() -> None:
    text = "the job's containers: 3 from the node's tree, 1 from the image's file"
    assert Part("ready-root", "", text) in parts(STARTED)
    assert Part("ready-root", "", f"the job's containers: {told.NOT_KNOWN}") in parts(SILENT)

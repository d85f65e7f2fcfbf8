"""What reports and `explain` say of trees."""

from __future__ import annotations

from tests.lib.told import counts, parts, run_of
from warmstart.audit.line import Line
from warmstart.audit.runs import Failure
from warmstart.report.story import Part

COPY: Line = {"event": "tree.shown", "tree": "/t", "way": "copy", "reason": "", "fetched_bytes": 7}
ITSELF: Line = {**COPY, "way": "itself", "reason": "no-copy", "fetched_bytes": 0}
PACKED: Line = {"event": "tree.packed", "tree": "/t", "size": 4096}
FAILED: Line = {"event": "tree.pack-failed", "error": {"code": "tree-changed", "reason": "it changed", "hint": "again"}}


def test_a_report_counts_them() -> None:
    assert counts(COPY, ITSELF, ITSELF, PACKED, FAILED) == {
        "trees shown: copy": 1,
        "trees shown: itself, no-copy": 2,
        "trees packed": 1,
        "tree packed bytes": 4096,
        "trees not packed": 1,
    }


def test_a_pack_is_told_under_the_job_that_asked() -> None:
    assert Part("packs", "", "/t: packed: 4KiB") in parts(PACKED)
    assert run_of(FAILED).failures == [Failure("failed", "packs", "tree-changed", "it changed", "again")]

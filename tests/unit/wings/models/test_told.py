"""What reports and `explain` say of models."""

from __future__ import annotations

from tests.lib.told import counts, parts, run_of
from warmstart.audit.line import Line
from warmstart.audit.runs import Failure
from warmstart.report.story import Part

COPY: Line = {"event": "model.shown", "model": "/m", "way": "copy", "reason": ""}
ITSELF: Line = {**COPY, "way": "itself", "reason": "first"}
COPIED: Line = {"event": "model.copied", "model": "/m", "bytes": 8192, "fetched_bytes": 4096}
FAILED: Line = {"event": "model.copy-failed", "error": {"code": "model-not-copied", "reason": "no", "hint": "more"}}


def test_a_report_counts_them() -> None:
    assert counts(COPY, ITSELF, ITSELF, COPIED, FAILED) == {
        "models shown: copy": 1,
        "models shown: itself, first": 2,
        "models copied": 1,
        "model copied bytes": 4096,
        "models not copied": 1,
    }


def test_a_copy_is_told_under_the_job_that_asked() -> None:
    assert Part("models", "", "/m: copied: 4KiB") in parts(COPIED)
    assert run_of(FAILED).failures == [Failure("failed", "models", "model-not-copied", "no", "more")]

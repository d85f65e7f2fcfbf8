"""What reports and metrics say of trees."""

from __future__ import annotations

from warmstart.audit.line import Line
from warmstart.audit.runs import Failure, Run, runs
from warmstart.audit.told import Metric
from warmstart.report import metrics
from warmstart.report.metrics import Counters
from warmstart.report.story import History, Part, tell
from warmstart.report.summary import Counted, summarize
from warmstart.wings.trees import told

COPY: Line = {"event": "tree.shown", "tree": "/t", "way": "copy", "reason": "", "fetched_bytes": 7}
ITSELF: Line = {**COPY, "way": "itself", "reason": "no-copy", "fetched_bytes": 0}
PACKED: Line = {"event": "tree.packed", "tree": "/t", "size": 4096}
FAILED: Line = {"event": "tree.pack-failed", "error": {"code": "tree-changed", "reason": "it changed", "hint": "again"}}


def one(*lines: Line) -> Run:
    """Return the run of a program off the clock that has these events."""
    run = {"hook": "background", "run_id": "0a", "node": "n1", "job_id": 7, "ts": "2026-01-31T09:30:00.250Z"}
    (found,) = runs({**run, **line} for line in lines)
    return found


def test_metrics_count_how_trees_were_read_and_packed() -> None:
    """Fetched bytes are those of all bundles."""
    counters = Counters()
    counters.add_run(one(COPY, ITSELF, PACKED, FAILED))

    def values(metric: Metric) -> dict[tuple[str, ...], float]:
        return {
            tuple(one.labels): one.value for one in counters.save().samples if one.metric == metric.name and one.value
        }

    assert values(told.SHOWN) == {("copy", ""): 1, ("itself", "no-copy"): 1}
    assert values(told.PACKS) == {("ok",): 1, ("failed",): 1}
    assert values(told.PACKED_BYTES) == {(): 4096}
    assert values(metrics.FETCHED_BYTES) == {(): 7}
    assert values(metrics.STEP_FAILURES) == {("packs", "tree-changed"): 1}


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

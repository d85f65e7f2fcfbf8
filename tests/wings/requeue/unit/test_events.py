"""What a report makes of the wing's events."""

from __future__ import annotations

from warmstart.audit.runs import REMARKS, runs
from warmstart.report import metrics
from warmstart.wings.requeue import events


def test_they_explain_a_run_and_are_counted() -> None:
    """By name."""
    counters = metrics.Counters()
    line = {"run_id": "0a1b2c3d", "hook": "prolog", "node": "n1", "job_id": 7}
    for run in runs({**line, "event": event} for event in (events.JOB_REQUEUED, events.JOB_NOT_REQUEUED)):
        counters.add_run(run)
    found = {sample.labels[0]: sample.value for sample in counters.samples(metrics.REMARKS)}
    assert found == {"job.requeued": 1, "job.not-requeued": 1}
    assert REMARKS[events.JOB_REQUEUED] == "the job went back into Slurm's queue"

"""What reports and `explain` say of a wing's events."""

from __future__ import annotations

from warmstart.audit.line import Line
from warmstart.audit.runs import Run, runs
from warmstart.report.story import History, Part, tell
from warmstart.report.summary import summarize


def run_of(*lines: Line) -> Run:
    """Return the run of a program that has these events."""
    run = {"hook": "background", "run_id": "0a", "node": "n1", "job_id": 7, "ts": "2026-01-31T09:30:00.250Z"}
    (found,) = runs({**run, **line} for line in lines)
    return found


def counts(*lines: Line) -> dict[str, int]:
    """Return what a report of several such runs, one for each event, counts."""
    return {counted.name: counted.times for counted in summarize([run_of(line) for line in lines]).of_wings}


def parts(*lines: Line) -> list[Part]:
    """Return what `explain` says of the run."""
    (last,) = tell([run_of(*lines)], History()).hooks
    return [*last.parts]

"""How a job ended, as squeue of Slurm 22.05 tells it while the epilog runs."""

from __future__ import annotations

import pytest

from warmstart.slurm import commands


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("7|COMPLETED|None|0|2026-11-21T19:28:52|", ""),
        ("7|COMPLETING|None|0|2026-11-21T19:28:52|", ""),
        ("6|COMPLETING|NonZeroExitCode|512|2026-11-21T19:29:04|\n7|COMPLETING|None|0|2026-11-21T19:29:04|\n", ""),
        ("7|COMPLETING|TimeLimit|15|2026-11-21T19:28:52|", "it ended with status 15, reason TimeLimit"),
        ("7|COMPLETING|TimeLimit|0|2026-11-21T19:28:52|", "it ended with status 0, reason TimeLimit"),
        ("7|TIMEOUT|TimeLimit|0|2026-11-21T19:28:52|", "it is TIMEOUT"),
        ("7|COMPLETING|OutOfMemory|125|2026-11-21T19:28:52|", "it ended with status 125, reason OutOfMemory"),
        ("7|COMPLETING|None|0|NONE|", "it was requeued"),
        ("7|COMPLETING|None", "not known: squeue does not tell"),
        ("", "not known: squeue does not tell"),
        ("6|COMPLETED|None|0|2026-11-21T19:28:52|", "not known: squeue does not tell"),
        ("7|COMPLETED|None|0|2026|\n7|COMPLETED|None|0|2026|", "not known: squeue does not tell"),
    ],
)
def test_what_squeue_says(answer: str, expected: str) -> None:
    """Only a plain answer about this job is one; other tasks of its array do not count."""
    assert commands.judged(answer, 7) == expected

"""Whose job a process is in: what a job's step daemon started belongs to that job."""

from __future__ import annotations

import re
from contextlib import suppress

from warmstart.slurm.commands import job_of_daemon

MOST_PARENTS = 64


def job_of(pid: int, proc: str = "/proc") -> int | None:
    """Return the id of the job whose step daemon started a process or a parent of it; None if none did."""
    with suppress(OSError, ValueError):
        for _ in range(MOST_PARENTS):
            if (job_id := job_of_daemon(f"{proc}/{pid}")) is not None:
                return job_id
            pid = _parent(f"{proc}/{pid}")
    return None


def _parent(process: str) -> int:
    with open(f"{process}/status", "rb") as file:
        match = re.search(rb"^PPid:\t([1-9]\d*)$", file.read(), re.MULTILINE)
    if match is None:
        raise ValueError(f"{process} has no parent")
    return int(match[1])

"""Runs that are over and of which something stays on the node: a cache to be harvested, or a directory to be removed.

Both are errands with the run, whose `left` names the profiles that are to be harvested. The key is the run's name,
which is unique to the run, so a requeued job can use the job's state.
"""

from __future__ import annotations

import os

from warmstart.errand import Errand, Errands, Kind
from warmstart.lean import NamedTuple
from warmstart.paths import NodePaths
from warmstart.run import state
from warmstart.run.state import Run, RunOfOtherRelease, RunUnreadable, using_state

HARVESTS = Kind("harvests", of_runs=True)
REMOVALS = Kind("removals", most=8, of_runs=True)

LONGEST_SECONDS = 2 * 86400.0
LEAST_FREE = 0.1  # fraction of the workspace's blocks and inodes: jobs need the space more than deferred harvests
NO_ROOM = "harvest.deferred is used up"
NO_SPACE = "less than a tenth of the workspace's file system is free"
TOO_OLD = "not finished within two days"
DAMAGED = "its file is damaged"


class Left(NamedTuple):
    """What the file says."""

    since: float  # seconds since the epoch
    run: str


class DeferredHarvest(NamedTuple):
    """A run of which something is left."""

    name: str  # of the run: JOBID.RUN
    since: float  # seconds since the epoch
    run: Run | None  # None if the file is damaged

    @property
    def job_labels(self) -> dict[str, object]:
        """What is known of the job, for `Log.for_job`."""
        if self.run:
            return self.run.job_labels
        job = self.name.partition(".")[0]
        return {"job_id": int(job)} if job.isdecimal() else {}


def defer(paths: NodePaths, kind: Kind, run: Run, since: float) -> None:
    """Write down that a run is to be harvested or removed, in place of what there is of it.

    `since` is in seconds since the epoch. Raises `FileSystemBroken` or `StateFull` if it cannot be written.
    """
    errands = Errands(paths, kind)
    with using_state(errands.directory):
        # One whose harvest took long comes after those that nobody has begun.
        errand = Errand(str(run.uid), int(since), int(any(caches.judged for caches in run.caches)), run.name)
        errands.put(errand, Left(since, state.encode(run).decode()))


def read(paths: NodePaths, kind: Kind, errand: Errand) -> DeferredHarvest | None:
    """Return a run; None if another process has just finished it, or another release will."""
    errands = Errands(paths, kind)
    path = f"{errands.directory}/{errand.name}"
    left = errands.read(errand, Left)
    if left is None:
        return DeferredHarvest(errand.key, 0.0, None) if os.path.lexists(path) else None
    try:
        run = state.decode(path, left.run.encode())
    except RunOfOtherRelease:
        return None
    except (RunUnreadable, ValueError):
        return DeferredHarvest(errand.key, 0.0, None)
    return DeferredHarvest(errand.key, left.since, run if run.name == errand.key else None)


def is_short_of_space(workspace: str) -> bool:
    """Return whether the file system of the workspaces has less than `LEAST_FREE` of its blocks or inodes free."""
    disk = os.statvfs(workspace)
    # statvfs(3) reports 0 inodes where their number is not fixed; then only blocks count.
    return disk.f_bavail < LEAST_FREE * disk.f_blocks or disk.f_favail < LEAST_FREE * disk.f_files

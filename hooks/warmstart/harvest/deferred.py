"""Deferred harvests: runs whose epilog ran out of time. Their cache stays on the node for maintenance to harvest.

    <node>/deferred/                       root, 0700
        <jobid>.<run>.json                 since when; the run's record, whose `deferred` names the profiles

Runs whose removal goes on off the clock (`run_end`) are written down in the same form in `<node>/removals`.

The run's directory keeps its name, which is unique to the run, so a requeued job can use the job's state. The process
that finishes or drops runs holds a flock on the directory; nobody waits for it.
"""

from __future__ import annotations

import errno
import os

from warmstart import record as records
from warmstart.host import files, wire
from warmstart.host.files import DIRECTORY, ensure_dir, opened_dir, read_small, replace_file, unlink_if_there
from warmstart.lean import Iterator, NamedTuple, contextmanager, dumps
from warmstart.paths import reserve_beside
from warmstart.record import Record, RecordOfOtherRelease, RecordUnreadable, Reserve, using_state

LONGEST_SECONDS = 2 * 86400.0
LEAST_FREE = 0.1  # fraction of the workspace's blocks and inodes: jobs need the space more than deferred harvests
NO_ROOM = "harvest.deferred is used up"
NO_SPACE = "less than a tenth of the workspace's file system is free"
TOO_OLD = "not finished within two days"
REBOOTED = "the node was started again"
DAMAGED = "its record is damaged"

_SUFFIX = ".json"
# The record is a JSON string here: quotes and backslashes are escaped, which at most doubles its length.
_LONGEST = 2 * records.LONGEST + 1024


class DeferredHarvest(NamedTuple):
    """A run whose harvest is not complete."""

    name: str  # of the run: JOBID.RUN
    since: float  # seconds since the epoch
    record: Record | None  # None if the file is damaged

    @property
    def job_labels(self) -> dict[str, object]:
        """What is known of the job, for `Journal.for_job`."""
        if self.record:
            return self.record.job_labels
        job = self.name.partition(".")[0]
        return {"job_id": int(job)} if job.isdecimal() else {}


def defer(directory: str, record: Record, since: float) -> None:
    """Record that a run still has profiles to harvest; replaces an earlier record of the run.

    `since` is in seconds since the epoch. Raises `StateUnusable` or `StateFull` if it cannot be written.
    """
    with using_state(directory):
        reserve = Reserve(reserve_beside(directory))
        ensure_dir(directory, 0o700, reserve=reserve)
        with opened_dir(directory) as fd:
            content = {"since": since, "record": records.encode(record).decode()}
            replace_file(fd, record.run_name + _SUFFIX, dumps(content).encode(), 0o600, reserve=reserve)


def forget(directory: str, name: str) -> None:
    """Remove a run from the deferred harvests; does nothing if it is not there."""
    try:
        with opened_dir(directory) as fd:
            unlink_if_there(name + _SUFFIX, fd)
    except FileNotFoundError:
        return


def holds(directory: str, name: str) -> bool:
    """Return whether a run's harvest is deferred."""
    return os.path.lexists(os.path.join(directory, name + _SUFFIX))


def deferred_harvests(directory: str) -> list[DeferredHarvest]:
    """Return the deferred harvests of a node, oldest first."""
    try:
        with opened_dir(directory) as fd:
            names = [name for name in os.listdir(fd) if name.endswith(_SUFFIX) and not name.startswith(".")]
            harvests = [_read(directory, name, fd) for name in names]
    except FileNotFoundError:
        return []
    return sorted((harvest for harvest in harvests if harvest), key=lambda harvest: (harvest.since, harvest.name))


@contextmanager
def exclusive(directory: str) -> Iterator[bool]:
    """Try to take the lock for a `with`; yields whether this process may finish and drop runs."""
    try:
        fd = os.open(directory, DIRECTORY)
    except FileNotFoundError:
        yield False
        return
    try:
        yield files.try_flock(fd)
    finally:
        os.close(fd)


def is_short_of_space(workspace: str) -> bool:
    """Return whether the file system of the workspaces has less than `LEAST_FREE` of its blocks or inodes free."""
    disk = os.statvfs(workspace)
    # statvfs(3) reports 0 inodes where their number is not fixed; then only blocks count.
    return disk.f_bavail < LEAST_FREE * disk.f_blocks or disk.f_favail < LEAST_FREE * disk.f_files


def _read(directory: str, name: str, fd: int) -> DeferredHarvest | None:
    run = name.removesuffix(_SUFFIX)
    try:
        raw = wire.parse(read_small(name, _LONGEST, fd))
        record = records.decode(os.path.join(directory, name), raw["record"].encode())
        if record.run_name != run:
            raise ValueError(name)
        return DeferredHarvest(run, wire.decode(float, raw["since"]), record)
    except (FileNotFoundError, RecordOfOtherRelease):  # another process has just finished it; or another release will
        return None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return DeferredHarvest(run, 0.0, None)
    except (RecordUnreadable, ValueError, KeyError, TypeError, AttributeError):
        return DeferredHarvest(run, 0.0, None)

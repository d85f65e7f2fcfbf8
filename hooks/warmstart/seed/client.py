"""Operations under the job's uid, in directories of the job's user.

Other jobs of that user can change the same files, so root trusts no result, only that the process ended. They can stop
and kill these processes, but not trace them: the real uid is the validator's (docs/threats.md, row 28). Hot path:
operations import what they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.files import DiskFailed
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker

if TYPE_CHECKING:
    from warmstart.seed.node_cache import Copy

ROOMS = ("warmstart.seed.extract:",)


class JobClient:
    """Operations that run under a job's uid; `cache` is a descriptor of the job's cache directory."""

    def __init__(self, identity: Identity, validator: Identity) -> None:
        self._identity = identity
        self._real_uid = validator.uid

    def unpack(self, copies: list[Copy], cache: int, subdir: str, deadline: Deadline) -> None:
        """Extract the offered entries of these copies into `subdir` of the cache, named after their profile.

        Modes and times are restored. Raises `DiskFailed`, `ProgramTooSlow` or `BundleDamaged`; the caller then
        removes `subdir`.
        """
        from warmstart.seed.extract import Source, extract, restore_times

        times: dict[str, int] = {}
        sources = []
        for copy in copies:
            files = copy.files()
            file_times = {path: file.mtime_ns for entry in copy.offer.entries for path, file in files[entry].items()}
            sources.append(Source(copy.path, None if copy.offer.whole else list(file_times)))
            times.update(file_times)
        extract(sources, cache, subdir, self._identity, deadline, real_uid=self._real_uid)
        try:
            with self._worker(cache) as worker:
                worker.run(deadline, restore_times, cache, subdir, times)
        except (WarmstartError, OSError) as error:  # the user can cause any of these, so never a node's error
            raise DiskFailed(what=f"modes and times in the job's cache of {subdir}", problem=error) from error

    def make_directory(self, cache: int, subdir: str, deadline: Deadline) -> None:
        """Make an empty directory in the cache. Raises `OSError`, `WorkerSilent` at the deadline."""
        from warmstart.seed.extract import make_directory

        with self._worker(cache) as worker:
            worker.run(deadline, make_directory, cache, subdir)

    def _worker(self, cache: int) -> Worker:
        return Worker(self._identity, "the job's cache", rooms=ROOMS, keep=(cache,), real_uid=self._real_uid)

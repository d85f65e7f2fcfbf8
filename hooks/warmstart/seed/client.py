"""Extraction into a job's cache, and what runs under the job's uid for it.

Other jobs of that user can change the same files, so root trusts no result, only that the process ended. They can stop
and kill these processes, but not trace them: the real uid is the validator's (docs/threats.md, row 28).
"""

from __future__ import annotations

from warmstart.caches.store.look import Layer
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.files import DiskFailed
from warmstart.host.identity import Identity, become
from warmstart.host.worker import Worker
from warmstart.lean import Sequence, partial
from warmstart.seed import node_cache
from warmstart.seed.extract import Source, extract, make_directory, restore_times


class JobClient:
    """Operations that run under a job's uid; `cache` is a descriptor of the job's cache directory."""

    def __init__(self, identity: Identity, validator: Identity) -> None:
        self._identity = identity
        self._real_uid = validator.uid

    def unpack(self, bundles: str, layers: Sequence[Layer], cache: int, subdir: str, deadline: Deadline) -> None:
        """Extract the entries of layers, whose copies are in `bundles`, into `subdir` of the cache: their profile's.

        Modes and times are restored. Raises `DiskFailed`, `ProgramTooSlow` or `BundleDamaged`; the caller then removes
        `subdir`.
        """
        times: dict[str, int] = {}
        sources = []
        for _, row, names in layers:
            files = node_cache.entries_of(bundles, row.sha256, names)
            own = {path: file.mtime_ns for entry in names for path, file in files[entry].items()}
            path = node_cache.path_of(bundles, row.sha256)
            sources.append(Source(path, None if len(names) == len(files) else list(own)))
            times.update(own)
        extract(sources, cache, subdir, self._identity, self._real_uid, deadline)
        try:
            self._worker(cache).run(deadline, restore_times, cache, subdir, times)
        except (WarmstartError, OSError) as error:  # the user can cause any of these, so never a node's error
            raise DiskFailed(what=f"modes and times in the job's cache of {subdir}", problem=error) from error

    def make_directory(self, cache: int, subdir: str, deadline: Deadline) -> None:
        """Make an empty directory in the cache. Raises `OSError`, `WorkerSilent` at the deadline."""
        self._worker(cache).run(deadline, make_directory, cache, subdir)

    def _worker(self, cache: int) -> Worker:
        return Worker(self._identity, "the job's cache", (cache,), partial(become, real_uid=self._real_uid))

"""What root does in a job's cache that its user owns, under the job's uid (`extract`)."""

from __future__ import annotations

from warmstart.caches.store.look import Layer
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import DiskFailed, opened_dir
from warmstart.host.identity import Identity, become
from warmstart.host.remove import remove_tree
from warmstart.host.untrusted import opened_of_job
from warmstart.host.worker import Worker
from warmstart.lean import Iterator, NamedTuple, Sequence, contextmanager, partial, suppress
from warmstart.seed import copies
from warmstart.seed.extract import Source, extract, make_directory, restore_times

REMOVAL_S = 5.0  # of entries that were extracted in vain; part of prolog.RESERVE_SECONDS


class JobClient(NamedTuple):
    """The cache of a job, which its user owns by now, and as whom to work in it."""

    fd: int
    job: Identity
    validator: Identity  # the real uid

    def unpack(self, bundles: str, layers: Sequence[Layer], subdir: str, deadline: Deadline) -> None:
        """Extract the entries of layers, whose copies are in `bundles`, into `subdir`: that of their profile.

        Modes and times are restored. Raises `DiskFailed`, `ProgramTooSlow` or `BundleDamaged`, and leaves `subdir`
        empty: a partial profile is worse than none.
        """
        times: dict[str, int] = {}
        sources = []
        for _, row, names in layers:
            files = copies.entries_of(bundles, row.sha256, names)
            own = {path: file.mtime_ns for entry in names for path, file in files[entry].items()}
            path = copies.path_of(bundles, row.sha256)
            sources.append(Source(path, None if len(names) == len(files) else list(own)))
            times.update(own)
        try:
            extract(sources, self.fd, subdir, self.job, self.validator.uid, deadline)
            try:
                self._worker.run(deadline, restore_times, self.fd, subdir, times)
            except (WarmstartError, OSError) as error:  # the user can cause any of these, so never a node's error
                raise DiskFailed(what=f"modes and times in the job's cache of {subdir}", problem=error) from error
        except BaseException:
            self.empty(subdir)
            raise

    def empty(self, subdir: str) -> None:
        """Leave an empty directory, or none: a profile's variable names it, and not every tool makes it."""
        deadline = after(REMOVAL_S)
        remove_tree(self.fd, subdir, deadline)
        with suppress(WarmstartError, OSError):  # the user can cause any of these
            self._worker.run(deadline, make_directory, self.fd, subdir)

    @property
    def _worker(self) -> Worker:
        take = partial(become, real_uid=self.validator.uid)
        return Worker(self.job, "the job's cache", (self.fd,), take)


@contextmanager
def opened_cache(directory: str, job: Identity, validator: Identity) -> Iterator[JobClient]:
    """Open the cache in a directory of root's. Raises `OSError` if the job's user has put something in its place."""
    with opened_dir(directory) as base, opened_of_job("cache", base) as fd:
        yield JobClient(fd, job, validator)

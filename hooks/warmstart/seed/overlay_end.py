"""The end of an overlay (`overlay`): made read-only and read, unmounted, removed. Runs as root.

The job controls everything below `cache`; what lies below `.seed` is root's.
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.errors import ResourceError
from warmstart.host import linux
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import PATH, closing, mount_id, opened_dir
from warmstart.host.remove import remove_tree
from warmstart.host.untrusted import opened_of_job
from warmstart.lean import Iterator, NamedTuple, contextmanager, suppress
from warmstart.paths import SEED

BUSY_PAUSE_S = 0.005  # short, to hit the moment between two files of a process that writes one after the other
LAST_TRY_S = 1.0  # to wait for a moment without writers when an overlay is removed
REMOVAL_S = 2.0  # in the prolog: nothing has been written to the overlay yet


class CacheInUse(ResourceError):
    """A process outlived its job, and still writes to the job's cache or uses it."""

    code = "cache-in-use"
    template = "{what}: a process still {problem}"
    hint = "which process of the job outlived it? Slurm's ProctrackType should end them all"


class OpenedOverlay(NamedTuple):
    """An overlay, open to be harvested; read-only unless its job runs."""

    upper: int  # descriptor of the upper layer: names that the job made or changed, whiteouts included
    merged: int  # descriptor of the overlay, to read content


@contextmanager
def opened_overlay(run_fd: int, profile: str, freeze: Deadline | None) -> Iterator[OpenedOverlay | None]:
    """Make a profile's overlay read-only and open it; yields None if it has none (extracted, or not seeded).

    With `freeze` None it is left to its job, which runs, as it is. Raises `CacheInUse` if a process still has a file
    open for writing at that deadline.
    """
    merged = _merged(run_fd, profile)
    if merged is None:
        yield None
        return
    with closing(merged):
        if freeze and not _make_read_only(merged, freeze):
            problem = "writes to the job's cache; nothing of it is harvested"
            raise CacheInUse(what=f"profile {profile}", problem=problem)
        with opened_dir(f"{SEED}/{profile}/upper", run_fd) as upper, opened_dir(".", merged) as root:
            yield OpenedOverlay(upper, root)


def was_shown(run_fd: int, subdir: str) -> bool:
    """Return whether a profile of a run was seeded by an overlay, mounted or not."""
    try:
        os.stat(f"{SEED}/{subdir}", dir_fd=run_fd, follow_symlinks=False)  # root's, as all that lies above it
    except FileNotFoundError:
        return False
    return True


def _make_read_only(merged: int, deadline: Deadline) -> bool:
    """Make an overlay read-only; return False if a file is still open for writing at the deadline."""
    while True:
        try:
            linux.make_read_only(merged)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            if deadline.expired():
                return False
            time.sleep(BUSY_PAUSE_S)
        else:
            return True


def take_down(run_fd: int) -> list[str]:
    """Unmount all overlays of a run; return the subdirs whose overlay a process still used.

    Each is first made read-only if possible, so that such a process changes nothing more. The caller then removes the
    run's tree; that removes the mount points and so detaches the mounts in other jobs' namespaces. Can be repeated,
    and handles whatever an interrupted prolog left.
    """
    try:
        with opened_dir(SEED, run_fd) as seed:
            subdirs = sorted(os.listdir(seed))
    except FileNotFoundError:
        return []
    return [subdir for subdir in subdirs if not _take_one_down(run_fd, subdir)]


def _take_one_down(run_fd: int, subdir: str) -> bool:
    """Unmount one overlay; return whether it was unused."""
    merged = _merged(run_fd, subdir)
    if merged is None:
        return True
    with closing(merged), suppress(OSError):  # the disk below fails: unmount it all the same
        _make_read_only(merged, after(LAST_TRY_S))
    unused = _unmount_from_cache(run_fd, subdir)
    with opened_dir(f"{SEED}/{subdir}", run_fd) as profile_dir:
        return linux.unmount("merged", profile_dir) and unused


def discard(run_fd: int, subdir: str) -> None:
    """Unmount and remove one profile's overlay in the prolog, before the job can use it."""
    with suppress(FileNotFoundError), opened_dir(SEED, run_fd) as seed:
        _unmount_from_cache(run_fd, subdir)
        remove_tree(seed, subdir, after(REMOVAL_S))


def _unmount_from_cache(run_fd: int, subdir: str) -> bool:
    """Unmount the overlay at `cache/<subdir>`; return whether it was unused.

    The job controls everything below `cache`, so the mount point may be covered or gone. Whatever stays mounted is
    detached with the removal of the tree.
    """
    with suppress(OSError), opened_of_job("cache", run_fd) as cache:
        return linux.unmount(subdir, cache)
    return True


def _merged(run_fd: int, subdir: str) -> int | None:
    """Return a descriptor (O_PATH) of the root of the overlay below `.seed/<subdir>`; None if none is mounted."""
    try:
        merged = os.open(f"{SEED}/{subdir}/merged", PATH, dir_fd=run_fd)
    except FileNotFoundError:
        return None
    if mount_id(merged) == mount_id(run_fd):
        os.close(merged)
        return None
    return merged

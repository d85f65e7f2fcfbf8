"""The removal of a run's directory, at once or in several attempts. Runs as root.

Mounts go first, once nobody makes any there. Each is made read-only before, so that a process that outlived the job can
change nothing. Removing a tree would detach its mounts, too, but would not report which ones were in use.

Before anything else the directory, which is root's, gets a name of its own (`Run.going`), and only root can enter it.
So a requeued job has its place for itself. The directories of the job are never moved by themselves: rename(2) fails
between two project ids, and users can set those of their own.

Every path is computed from the run's job and id, never found by user or by pattern.
"""

from __future__ import annotations

import errno
import os

from warmstart.errors import ResourceError
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import end_flock_holders, opened_dir
from warmstart.host.remove import remove_tree
from warmstart.lean import Iterator, NamedTuple, suppress
from warmstart.paths import CACHES, MOUNTED, SEED
from warmstart.run.state import Run

AT_ONCE_S = 1.0  # for which a hook removes what a job left, before it leaves the rest

_TMP = "tmp"
_MAKER_SECONDS = 1.0  # for a killed process to end


class WorkspaceBusy(ResourceError):
    """A run's workspace, or another directory of the run, could not be removed."""

    code = "workspace-busy"
    template = "{path} could not be removed completely: {problem}"
    hint = "find the process or mount that holds it (fuser -vm, findmnt), then remove the directory by hand"


class Removed(NamedTuple):
    """How far a removal has come."""

    in_use: list[str] = []  # noqa: RUF012 - overlays that a process still used; never mutated
    is_whole: bool = True


def remove(run: Run, deadline: Deadline) -> Removed:
    """Remove a run's directory. A second call goes on where the first one ended. Raises `WorkspaceBusy`."""
    if not run.workspace:
        return Removed()
    try:
        with opened_dir(run.workspace) as root:
            in_use = [*_unmount(root, run.going), *(_unmount(root, run.place) if _is_its(root, run) else ())]
            try:
                remove_tree(root, _closed(root, run).place, deadline)
            except OSError as error:
                if error.errno != errno.ETIME:
                    raise
                return Removed(in_use, is_whole=False)
            return Removed(in_use)
    except FileNotFoundError:
        return Removed()
    except OSError as error:
        if error.errno == errno.EROFS:
            return Removed()  # a read-only file system: nothing was written, and nothing can be removed
        raise WorkspaceBusy(path=run.directory, problem=error.strerror) from error


def close(run: Run, deadline: Deadline) -> Run:
    """Make the directory of a run that waits root's alone, under its last name; return the run with that.

    Removes its TMPDIR, or some of it if that takes longer than `AT_ONCE_S`. Raises `WorkspaceBusy`.
    """
    try:
        with opened_dir(run.workspace) as root:
            run = _closed(root, run)
            with opened_dir(run.place, root) as fd:
                try:
                    remove_tree(fd, _TMP, deadline.within(AT_ONCE_S))
                except OSError as error:
                    if error.errno != errno.ETIME:
                        raise
    except FileNotFoundError:
        pass
    except OSError as error:
        raise WorkspaceBusy(path=run.directory, problem=error.strerror) from error
    return run


def _is_its(root: int, run: Run) -> bool:
    """Return whether the directory at a run's place is the run's, and not one that was there before it.

    One without anything in it is that of a prolog that died before it could mark it.
    """
    try:
        os.stat(f"{run.place}/{run.mark}", dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        with suppress(OSError):
            os.rmdir(run.place, dir_fd=root)
        return False
    return True


def _closed(root: int, run: Run) -> Run:
    """Close a run's directory to its user, and give it its last name; return the run with the name that it has now."""
    moved = run._replace(moved=True)
    if run.moved or not _is_its(root, run):
        return moved
    try:
        with opened_dir(run.place, root) as fd:
            os.fchmod(fd, 0o700)
        os.rename(run.place, run.going, src_dir_fd=root, dst_dir_fd=root)
    except OSError:
        return run
    return moved


def _each(run: int) -> Iterator[int]:
    """Yield descriptors of the directories of a run's caches: those of its own image, then those of others."""
    yield run
    with suppress(FileNotFoundError), opened_dir(CACHES, run) as others:
        for name in os.listdir(others):
            with opened_dir(name, others) as fd:
                yield fd


def _unmount(root: int, place: str) -> list[str]:
    """Unmount the overlays and what else is mounted for a run. Return the overlays that a process still used."""
    try:
        with opened_dir(place, root) as run:
            names = os.listdir(run)
            if MOUNTED in names:
                from warmstart.run import mounted

                mounted.take_down(run)
            if SEED not in names and CACHES not in names:
                return []
            from warmstart.seed import overlay_end

            in_use: list[str] = []
            for fd in _each(run):
                end_flock_holders(fd, after(_MAKER_SECONDS))  # who still makes them
                in_use += overlay_end.take_down(fd)
            return in_use
    except FileNotFoundError:
        return []

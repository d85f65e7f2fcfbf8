"""Step `workspace`: the job's private directory tree on this node (docs/architecture.md, On a node).

    <root>/<jobid>.<restarts>/ root, 0711; the same path on all nodes of the job (`Run.place`)
        .of-<jobid>.<run>      whose directory it is, there being one of that name only: `Run.mark`, made first
        tmp/  cache/           the job's uid and gid, 0700
        shown                  the list of what the job sees (`paths.Shown`); its cache, to begin with

Root builds the whole tree and changes its owner last, so the job's user cannot interfere with the construction
(docs/threats.md, row 4). A cache with directories for profiles still belongs to root after this step: `seed` mounts
overlays in it and then changes its owner. `release` computes the same name from the run and removes the tree.
"""

from __future__ import annotations

import errno
import os

from warmstart.host.deadline import after
from warmstart.host.files import (
    FULL,
    NODE_FAULTS,
    DiskFailed,
    FileSystemBroken,
    Untrusted,
    ensure_path,
    opened_dir,
)
from warmstart.lean import NamedTuple, suppress
from warmstart.paths import NOTHING, SHOWN, Shown
from warmstart.run.shown import show
from warmstart.run.state import Run
from warmstart.steps.contract import Context, Outcome

NAME = "workspace"
REMOVAL_S = 1.0  # of what nobody has seen yet


class Options(NamedTuple):
    """What to build."""

    profiles: tuple[str, ...]  # each has a directory of its name below cache/


def run(context: Context, options: Options) -> Outcome:
    """Build the whole tree, or nothing. Raises `FileSystemBroken`, `DiskFailed` or `WorkspaceNotRoots`."""
    run = context.run
    try:
        ensure_path(run.workspace, 0o755, sticky=False)
        with opened_dir(run.workspace) as root:
            _require_room(root)
            run = _make(root, run, options.profiles, context.policy.paths.cache)
    except OSError as error:
        from warmstart.images.scratch import WorkspaceNotRoots  # slow to import

        if isinstance(error, Untrusted) or error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise WorkspaceNotRoots.of(run.workspace, error) from error
        problem = error.strerror or str(error)
        if error.errno in NODE_FAULTS:
            raise FileSystemBroken(path=run.workspace, problem=problem) from error
        raise DiskFailed(what=f"no workspace below {run.workspace}", problem=problem) from error
    path = run.directory
    cache = context.policy.constant_cache or f"{path}/cache"
    run = run._replace(own=run.own._replace(path=cache))
    return Outcome(run=run, environment={"TMPDIR": f"{path}/tmp"})


def _require_room(root: int) -> None:
    """Raise `OSError` if the disk is at its floor, perhaps because of what earlier jobs left that is being removed."""
    disk = os.statvfs(root)
    if disk.f_bavail * 20 < disk.f_blocks or disk.f_favail * 20 < disk.f_files:
        from warmstart.host import space  # the exact answer, rarely asked

        if not space.room(root):
            raise OSError(errno.ENOSPC, "its disk has less than 1 GiB, or a twentieth of its space or inodes, free")


def _make(root: int, run: Run, profiles: tuple[str, ...], constant: str) -> Run:
    """Make the run's directory with all that is in it; return the run with its name."""
    try:
        os.mkdir(run.place, 0o711, dir_fd=root)
    except FileExistsError:
        run = run._replace(apart=True)
        os.mkdir(run.place, 0o711, dir_fd=root)
    try:
        with opened_dir(run.place, root) as run_fd:
            _build(run_fd, run, profiles, constant)
    except OSError:
        with suppress(OSError):
            _remove(root, run)
        raise
    return run


def _build(run_fd: int, run: Run, profiles: tuple[str, ...], constant: str) -> None:
    os.close(os.open(run.mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=run_fd))
    os.fchmod(run_fd, 0o711)
    for name in ("tmp", "cache", *(f"cache/{profile}" for profile in profiles)):
        os.mkdir(name, 0o700, dir_fd=run_fd)
    for name in ("tmp",) if profiles else ("tmp", "cache"):
        os.chown(name, run.uid, run.gid, dir_fd=run_fd, follow_symlinks=False)
    try:
        show(run_fd, Shown("rw", "root", "cache", NOTHING, constant, NOTHING), run.uid)
    except OSError as error:
        # All else takes only inodes. The job has its cache, at the cache's own path; its containers have none.
        if error.errno not in FULL:
            raise


def _remove(root: int, run: Run) -> None:
    from warmstart.host.remove import remove_tree

    with opened_dir(run.place, root) as run_fd:
        for name in ("tmp", "cache", SHOWN, run.mark):  # the mark last: by it the run's directory is known
            remove_tree(run_fd, name, after(REMOVAL_S))
    os.rmdir(run.place, dir_fd=root)

"""Step `workspace`: the job's private directory tree on this node (docs/architecture.md, On a node).

    <root>/<node>/<jobid>.<run>/   root, 0711
        tmp/  cache/               the job's uid and gid, 0700
        shown                      the list of what the job sees (`paths.Shown`); its cache, to begin with

Root builds the whole tree and changes its owner last, so the job's user cannot interfere with the construction
(docs/threats.md, row 4). A cache with directories for profiles still belongs to root after this step: `seed` mounts
overlays in it and then changes its owner. `release` computes the same name from the record and removes the tree.
"""

from __future__ import annotations

import errno
import os

from warmstart import view
from warmstart.audit import events
from warmstart.errors import ResourceError
from warmstart.host.files import (
    FULL,
    NODE_FAULTS,
    Untrusted,
    ensure_dir,
    ensure_path,
    opened_dir,
    unlink_if_there,
)
from warmstart.lean import NamedTuple, suppress
from warmstart.paths import LONGEST_TMPDIR, NOTHING, SHOWN, Shown
from warmstart.record import Record
from warmstart.steps.contract import Context, Outcome

NAME = "workspace"


class WorkspaceFull(ResourceError):
    """There is no space for another workspace."""

    code = "workspace-full"
    template = "no workspace below {path}: {problem}"
    hint = "free space there; limit users by quota, or give warmstart its own file system"


class Options(NamedTuple):
    """What to build."""

    profiles: tuple[str, ...]  # each has a directory of its name below cache/


def run(context: Context, options: Options) -> Outcome:
    """Build the whole tree, or nothing. Raises `WorkspaceUnusable`, `WorkspaceFull` or `WorkspaceNotRoots`."""
    record = context.record
    path = record.run_directory
    try:
        ensure_path(record.workspace, 0o755)
        with opened_dir(record.workspace) as root:
            _require_room(root)
            ensure_dir(record.node, 0o755, root)
            with opened_dir(record.node, root) as node:
                os.mkdir(record.run_name, 0o711, dir_fd=node)
                _build(node, record, options.profiles, context.policy.paths.cache)
    except OSError as error:
        from warmstart.images.scratch import WorkspaceNotRoots, WorkspaceUnusable  # slow to import

        if isinstance(error, Untrusted) or error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise WorkspaceNotRoots.of(f"{record.workspace}/{record.node}", error) from error
        cls = WorkspaceUnusable if error.errno in NODE_FAULTS else WorkspaceFull
        raise cls(path=record.workspace, problem=error.strerror or str(error)) from error
    environment = {}
    if len(os.fsencode(f"{path}/tmp")) <= LONGEST_TMPDIR:
        environment["TMPDIR"] = f"{path}/tmp"
    else:  # keep the user's TMPDIR: programs could not bind a socket below a longer path
        context.audit.emit(events.TMPDIR_LEFT_OUT, path=f"{path}/tmp", longest=LONGEST_TMPDIR)
    cache = context.policy.constant_cache or f"{path}/cache"
    return Outcome("changed", detail={"path": path}, record={"cache": cache}, environment=environment)


def _require_room(root: int) -> None:
    """Raise `OSError` if the disk is at its floor, perhaps because of what earlier jobs left that is being removed."""
    disk = os.statvfs(root)
    if disk.f_bavail * 20 < disk.f_blocks or disk.f_favail * 20 < disk.f_files:
        from warmstart.host import space  # the exact answer, rarely asked

        if not space.room(root):
            raise OSError(errno.ENOSPC, "its disk has less than 1 GiB, or a twentieth of its space or inodes, free")


def _build(node: int, record: Record, profiles: tuple[str, ...], constant: str) -> None:
    to_be_seeded = ["cache", *(f"cache/{name}" for name in profiles)] if profiles else []
    own = ["tmp", *([] if profiles else ["cache"])]
    made: list[str] = []
    try:
        with opened_dir(record.run_name, node) as run_fd:
            os.fchmod(run_fd, 0o711)
            for name in (*own, *to_be_seeded):
                os.mkdir(name, 0o700, dir_fd=run_fd)
                made.append(name)
            for name in own:
                os.chown(name, record.uid, record.gid, dir_fd=run_fd, follow_symlinks=False)
            try:
                view.show(run_fd, Shown("rw", "root", "cache", NOTHING, constant, NOTHING), record.uid)
            except OSError as error:
                # All else takes only inodes. The job has its cache, at the cache's own path; its containers have none.
                if error.errno not in FULL:
                    raise
    except OSError:
        _unbuild(node, record.run_name, made)
        raise


def _unbuild(node: int, run_name: str, made: list[str]) -> None:
    with suppress(OSError), opened_dir(run_name, node) as run_fd:
        unlink_if_there(SHOWN, run_fd)
        for name in reversed(made):
            with suppress(OSError):
                os.rmdir(name, dir_fd=run_fd)
    with suppress(OSError):
        os.rmdir(run_name, dir_fd=node)

"""Step `workspace`: the job's private directory tree on this node (docs/architecture.md, On a node).

    <root>/<node>/<jobid>.<run>/   root, 0711
        tmp/  cache/               the job's uid and gid, 0700
        shown                      the list of what the job sees (`paths.Shown`); its cache, to begin with

Root builds the whole tree and changes its owner last, so the job's user cannot interfere with the construction
(docs/threats.md, row 4). A cache with directories for profiles still belongs to root after this step: `seed` mounts
overlays in it and then changes its owner. With `limits.workspace` the run's directory is a file system of that size, so
that a job fills only its own. Not by project quota: users can change the project id of what they own, and so leave the
quota (tried on XFS). `release` computes the same name from the record and removes the tree.
"""

from __future__ import annotations

import errno
import os

from warmstart import view
from warmstart.audit import events
from warmstart.errors import ResourceError
from warmstart.host.deadline import after
from warmstart.host.files import (
    FULL,
    NODE_FAULTS,
    Untrusted,
    ensure_dir,
    ensure_path,
    opened_dir,
    remove_tree,
    unlink_if_there,
)
from warmstart.lean import NamedTuple, suppress
from warmstart.paths import LONGEST_TMPDIR, NOTHING, SHOWN, Shown
from warmstart.record import Record
from warmstart.steps.contract import Context, Outcome

NAME = "workspace"
_REMOVAL_S = 5.0


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
    record, limits = context.record, context.policy.limits
    path = record.run_directory
    detail: dict[str, object] = {"path": path}
    try:
        ensure_path(record.workspace, 0o755)
        with opened_dir(record.workspace) as root:
            _require_room(root)
            ensure_dir(record.node, 0o755, root)
            with opened_dir(record.node, root) as node:
                if limits.workspace is None:
                    os.mkdir(record.run_name, 0o711, dir_fd=node)
                    _build(node, record, options.profiles, context.policy.paths.cache)
                else:
                    caps = (limits.workspace, limits.workspace_files)
                    detail["limit"] = _build_limited(node, record, options.profiles, context.policy.paths.cache, caps)
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
    return Outcome("changed", detail=detail, record={"cache": cache}, environment=environment)


def _require_room(root: int) -> None:
    """Raise `OSError` if the disk is at its floor, perhaps because of what earlier jobs left that is being removed."""
    disk = os.statvfs(root)
    if disk.f_bavail * 20 < disk.f_blocks or disk.f_favail * 20 < disk.f_files:
        from warmstart.host import space  # the exact answer, rarely asked

        if not space.room(root):
            raise OSError(errno.ENOSPC, "its disk has less than 1 GiB, or a twentieth of its space or inodes, free")


def _build_limited(node: int, record: Record, profiles: tuple[str, ...], constant: str, caps: tuple[int, int]) -> str:
    """Build the tree in a file system of its own, or without a limit if this node cannot make one; return which.

    The file system lies in a file of the run's directory, on which it is then mounted. Its own errors drain no node: a
    full disk below it looks like a failing one.
    """
    from warmstart.images import scratch  # slow to import, and few sites limit workspaces

    os.mkdir(record.run_name, 0o711, dir_fd=node)
    is_mounted = False
    try:
        with opened_dir(record.run_name, node) as run_fd:
            is_mounted = scratch.mount_loop_filesystem(run_fd, record.run_directory, ".", scratch.Caps(*caps))
        if is_mounted:
            with opened_dir(record.run_name, node) as run_fd:
                os.rmdir("lost+found", dir_fd=run_fd)
        _build(node, record, profiles, constant)
    except OSError as error:
        with suppress(OSError), scratch.freeing_disk(node, record.run_name):
            remove_tree(node, record.run_name, after(_REMOVAL_S))
        if is_mounted:
            raise WorkspaceFull(path=record.run_directory, problem=error.strerror or str(error)) from error
        raise
    return "file system" if is_mounted else "none"


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
                view.show(run_fd, Shown("rw", "root", "cache", NOTHING, constant, NOTHING))
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

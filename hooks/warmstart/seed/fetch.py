"""Fetch a bundle into the node's cache (`node_cache`): one process does, and who else wants it waits for that one.

What has come when a prolog's time is over stays: the next job's fetch goes on there, and all bytes are hashed. Of what
came in vain nothing stays.
"""

from __future__ import annotations

import os
import time

from warmstart.caches.store import client
from warmstart.caches.store.bundles import BundleDamaged
from warmstart.caches.store.layout import Entries, Namespace
from warmstart.caches.store.listing import Row
from warmstart.errors import ResourceError
from warmstart.host import space
from warmstart.host.deadline import Deadline, jittered, uptime_s
from warmstart.host.files import (
    DiskFailed,
    closing,
    ensure_dir,
    is_at,
    opened_dir,
    replace_file,
    unlink_if_there,
    wait_flock,
)
from warmstart.host.identity import WorkerSilent
from warmstart.lean import dumps, suppress
from warmstart.seed.node_cache import ABOUT, BUNDLE, FETCHING, Copy, here
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed

JUST_BOOTED_S = 900.0  # of uptime
SPREAD_S = 2.0
_is_spread = False


class FetchOverBudget(ResourceError):
    """A bundle is not on the node, and its fetch takes more bytes or time than there are."""

    code = "fetch-over-budget"
    template = "bundle {bundle}: {problem}"
    hint = "later jobs go on with what came; raise seed.fetch_budget in the policy, or what nodes keep of its kind"


def get(directory: str, where: Namespace, row: Row, *, store: StoreClient, most_bytes: int, deadline: Deadline) -> Copy:
    """Return the node's copy of a bundle, which is fetched if there is none, and nobody else does.

    Raises `FetchOverBudget` if the fetch takes more than `most_bytes`, is not complete at the deadline, or another job
    is still at it; `OSError` and `DiskFailed` if the node's disk fails, and the errors of the store.
    """
    if copy := here(directory, where, row):
        return copy
    if row.size > most_bytes:
        problem = f"it has {row.size} bytes, but only {most_bytes} may still be fetched"
        raise FetchOverBudget(bundle=row.sha256, problem=problem)
    _spread(deadline)
    ensure_dir(directory, 0o700)
    flags, temp = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, row.sha256 + FETCHING
    with opened_dir(directory) as dir_fd:
        while True:
            with closing(os.open(temp, flags, 0o600, dir_fd=dir_fd)) as fd:
                if not wait_flock(fd, deadline):
                    problem = "another job of this node was still fetching it at the deadline"
                    raise FetchOverBudget(bundle=row.sha256, problem=problem)
                copy, is_ours = here(directory, where, row), is_at(fd, temp, dir_fd)
                if copy and is_ours:
                    unlink_if_there(temp, dir_fd)
                if copy:
                    return copy
                if is_ours:  # else another job has given it up
                    _fill(dir_fd, fd, where, row, store, deadline)
                    return Copy(where, row, directory, row.size)


def _spread(deadline: Deadline) -> None:
    """Pause a moment before the first fetch on a node that has just started: many that do lack the same bundles."""
    global _is_spread  # noqa: PLW0603 - of this hook
    if not _is_spread and uptime_s() < JUST_BOOTED_S:
        time.sleep(jittered(min(SPREAD_S, deadline.left() / 5) / 1.5))
    _is_spread = True


def _fill(  # noqa: PLR0917 - where to, and what
    dir_fd: int, fd: int, where: Namespace, row: Row, store: StoreClient, deadline: Deadline
) -> None:
    """Fill the locked file `fd`, which may have the beginning, and give it its name."""
    about = dumps(where[1:]).encode()
    try:
        replace_file(dir_fd, row.sha256 + ABOUT, about, 0o600)  # first: of a beginning that stays, too
        _reserve(fd, row)
        entries = _fetched(fd, where, row, store, deadline)
        replace_file(dir_fd, row.sha256 + ABOUT, about + b"\n" + dumps(entries).encode(), 0o600)
        os.fchmod(fd, 0o444)
        os.fsync(fd)
        os.rename(row.sha256 + FETCHING, row.sha256 + BUNDLE, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        os.fsync(dir_fd)
    except BaseException as error:
        if isinstance(error, FetchOverBudget | StoreFailed | WorkerSilent) and os.fstat(fd).st_size:
            raise
        with suppress(OSError):  # whoever waits for its lock begins anew
            for suffix in (ABOUT, FETCHING):
                unlink_if_there(row.sha256 + suffix, dir_fd)
            os.ftruncate(fd, 0)  # a process that hangs may still have it open
        raise


def _reserve(fd: int, row: Row) -> None:
    """Allocate the disk space of a bundle; raises `DiskFailed` if the disk would be at its floor with it.

    The file stays as long as it is: its length says how much has come.
    """
    try:
        is_held = space.allocate(fd, row.size, keep_length=True)
        left = space.room(fd) - (0 if is_held else row.size)
    except OSError as error:
        raise DiskFailed(what=f"bundle {row.sha256}", problem=error.strerror) from error
    if left <= 0:
        raise DiskFailed(what=f"bundle {row.sha256}", problem=space.no_room(fd, row.size))


def _fetched(fd: int, where: Namespace, row: Row, store: StoreClient, deadline: Deadline) -> Entries:
    """Fetch into `fd`, anew if what an earlier fetch left does not have the right hash together with the rest."""
    if os.fstat(fd).st_size:
        with suppress(BundleDamaged):
            return _asked(fd, where, row, store, deadline)
        os.ftruncate(fd, 0)
    return _asked(fd, where, row, store, deadline)


def _asked(fd: int, where: Namespace, row: Row, store: StoreClient, deadline: Deadline) -> Entries:
    try:
        return client.fetch(store, where, row, deadline, into=fd)
    except WorkerSilent as error:
        if not deadline.expired():
            raise
        problem = f"{os.fstat(fd).st_size} of {row.size} bytes came in time; the next job goes on there"
        raise FetchOverBudget(bundle=row.sha256, problem=problem) from error

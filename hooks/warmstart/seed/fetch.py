"""Fetch a bundle into the node's cache (`node_cache`): one process does, and who else wants it waits for that one.

What has come when a prolog's time is over stays: the next job's fetch goes on there, and all bytes are hashed. Of what
came in vain nothing stays.
"""

from __future__ import annotations

import os

from warmstart.caches.store import client
from warmstart.caches.store.bundles import BundleDamaged
from warmstart.caches.store.layout import Entries, Namespace
from warmstart.caches.store.listing import Row
from warmstart.host import space
from warmstart.host.deadline import Deadline
from warmstart.host.files import (
    DiskFailed,
    closing,
    disk_errors,
    ensure_dir,
    is_at,
    opened_dir,
    replace_file,
    unlink_if_there,
    wait_flock,
)
from warmstart.host.identity import WorkerSilent
from warmstart.lean import dumps, suppress
from warmstart.seed.copies import ABOUT, BUNDLE, FETCHING, FetchOverBudget, is_here
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed


def get(  # noqa: PLR0917 - as `node_cache.get`
    directory: str, where: Namespace, row: Row, store: StoreClient, most_bytes: int, deadline: Deadline
) -> int:
    """Fetch a bundle that was not there, if nobody else does; as `node_cache.get`."""
    if row.size > most_bytes:
        problem = f"it has {row.size} bytes, but only {most_bytes} may still be fetched"
        raise FetchOverBudget(bundle=row.sha256, problem=problem)
    ensure_dir(directory, 0o700)
    flags, temp = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, row.sha256 + FETCHING
    with opened_dir(directory) as dir_fd:
        while True:
            with closing(os.open(temp, flags, 0o600, dir_fd=dir_fd)) as fd:
                if not wait_flock(fd, deadline):
                    problem = "another job of this node was still fetching it at the deadline"
                    raise FetchOverBudget(bundle=row.sha256, problem=problem)
                is_ours = is_at(fd, temp, dir_fd)  # else another job has given it up, or brought it
                if is_here(directory, row):
                    if is_ours:
                        unlink_if_there(temp, dir_fd)
                    return 0
                if is_ours:
                    _fill(dir_fd, fd, where, row, store, deadline)
                    return row.size


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
    with disk_errors(f"bundle {row.sha256}"):
        is_held = space.allocate(fd, row.size, keep_length=True)
        left = space.room(fd) - (0 if is_held else row.size)
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

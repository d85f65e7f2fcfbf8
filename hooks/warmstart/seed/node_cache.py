"""The node's cache of bundles: each is fetched once, and found by its hash.

    <node>/bundles/               root, 0700
        <sha256>.sqsh             0444; mtime is the last use
        <sha256>.json             its place in the store, and in a second line its entries with their files
        <sha256>.fetching         its beginning; being fetched while a process holds a flock on it

A copy is named by its hash, so one that is there is always the right one. Its mode is 0444 because a process that gets
it as an open descriptor opens it again. What has come when a prolog's time is over stays: the next job's fetch goes on
there, and all bytes are hashed. `mounts` mounts the copies, `eviction` bounds them.
"""

from __future__ import annotations

import os
import time

from warmstart.caches.store import client
from warmstart.caches.store.layout import Entries, File, Namespace
from warmstart.caches.store.listing import Row
from warmstart.errors import ResourceError
from warmstart.host import files, wire
from warmstart.host.deadline import Deadline, jittered
from warmstart.host.files import (
    DiskFailed,
    closing,
    ensure_dir,
    is_at,
    opened_dir,
    read_small,
    replace_file,
    unlink_if_there,
)
from warmstart.host.identity import WorkerSilent
from warmstart.lean import Collection, NamedTuple, dumps, suppress
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed

BUNDLE, ABOUT, FETCHING = ".sqsh", ".json", ".fetching"
LARGEST = 64 << 20  # bytes of what is known about a copy
JUST_BOOTED_S = 900.0  # of uptime
SPREAD_S = 2.0
_is_spread = False


class FetchOverBudget(ResourceError):
    """A bundle is not on the node, and its fetch takes more bytes or time than there are."""

    code = "fetch-over-budget"
    template = "bundle {bundle}: {problem}"
    hint = "later jobs go on with what came; raise seed.fetch_budget in the policy, or what nodes keep of its kind"


class Copy(NamedTuple):
    """The copy of a bundle on this node."""

    where: Namespace
    row: Row
    directory: str
    fetched: int = 0  # bytes fetched from the store by this call; 0 if the copy was there

    @property
    def path(self) -> str:
        """Path of the squashfs file."""
        return f"{self.directory}/{self.row.sha256}{BUNDLE}"

    def entries(self, names: Collection[str] = ()) -> Entries:
        """Return all entries of the bundle with their files. Raises `BundleDamaged` if it lacks one of these."""
        found = entries_of(self.directory, self.row.sha256)
        if not found.keys() >= {*names}:
            from warmstart.caches.store.bundles import BundleDamaged

            raise BundleDamaged(bundle=self.row.sha256, problem="its listing names entries that it lacks")
        return found


def entries_of(directory: str, sha256: str) -> Entries:
    """Return all entries of a copy with their files; raises `FileNotFoundError` if this node has no such copy."""
    with opened_dir(directory) as fd:
        raw = wire.parse(read_small(sha256 + ABOUT, LARGEST, fd).partition(b"\n")[2])
    return {entry: {path: File(*file) for path, file in found.items()} for entry, found in raw.items()}


def here(directory: str, where: Namespace, row: Row) -> Copy | None:
    """Return the node's copy of a bundle, and record its use; None if there is none."""
    copy = Copy(where, row, directory)
    try:  # by name, in a directory of root's alone: ten bundles are thirty calls less
        os.utime(copy.path, follow_symlinks=False)
        return copy if os.stat(copy.path, follow_symlinks=False).st_size == row.size else None
    except FileNotFoundError:
        return None


def get(directory: str, where: Namespace, row: Row, *, store: StoreClient, most_bytes: int, deadline: Deadline) -> Copy:
    """Return the node's copy of a bundle; fetch it from the store if there is none.

    Raises `FetchOverBudget` if the fetch takes more than `most_bytes`, is not complete at the deadline, or another job
    is still at it; `OSError` and `DiskFailed` if the node's disk fails, and the errors of `StoreClient.fetch`.
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
                if not files.wait_flock(fd, deadline):
                    problem = "another job of this node was still fetching it at the deadline"
                    raise FetchOverBudget(bundle=row.sha256, problem=problem)
                copy, is_ours = here(directory, where, row), is_at(fd, temp, dir_fd)
                if copy and is_ours:
                    unlink_if_there(temp, dir_fd)
                if copy:
                    return copy
                if is_ours:  # else another job has given it up
                    _fetch(dir_fd, fd, where, row, store, deadline)
                    return Copy(where, row, directory, row.size)


def _spread(deadline: Deadline) -> None:
    """Pause a moment before the first fetch on a node that has just started: many that do lack the same bundles."""
    global _is_spread  # noqa: PLW0603 - of this hook
    from warmstart.run.state import uptime_s

    if not _is_spread and uptime_s() < JUST_BOOTED_S:
        time.sleep(jittered(min(SPREAD_S, deadline.left() / 5) / 1.5))
    _is_spread = True


def _fetch(  # noqa: PLR0917 - where to, and what
    dir_fd: int, fd: int, where: Namespace, row: Row, store: StoreClient, deadline: Deadline
) -> None:
    """Fill the locked file `fd`, which may have the beginning, and give it its name. What came in vain goes."""
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


def _fetched(fd: int, where: Namespace, row: Row, store: StoreClient, deadline: Deadline) -> Entries:
    """Fetch into `fd`, anew if what an earlier fetch left does not have the right hash together with the rest."""
    from warmstart.caches.store.bundles import BundleDamaged

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


def _reserve(fd: int, row: Row) -> None:
    """Allocate the disk space of a bundle; raises `DiskFailed` if the disk would be at its floor with it.

    The file stays as long as it is: its length says how much has come.
    """
    from warmstart.host import space

    try:
        is_held = space.allocate(fd, row.size, keep_length=True)
        left = space.room(fd) - (0 if is_held else row.size)
    except OSError as error:
        raise DiskFailed(what=f"bundle {row.sha256}", problem=error.strerror) from error
    if left <= 0:
        raise DiskFailed(what=f"bundle {row.sha256}", problem=space.no_room(fd, row.size))

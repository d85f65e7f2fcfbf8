"""The node's copies of bundles: each is fetched once, mounted once, and shown to jobs as clones of that mount.

    <node>/bundles/               root, 0700
        <sha256>.sqsh             0444; mtime is the last use
        <sha256>.json             its place in the store, and in a second line its entries with their files
        <sha256>.fetching         its beginning; being fetched while a process holds a flock on it
    <node>/layers/<sha256>/       root, 0700; the copy, mounted `ro,nosuid,nodev`

A copy is named by its hash, so one that is there is always the right one. Its mode is 0444 because a process that gets
it as an open descriptor opens it again. Jobs have clones of its mount, so it can be unmounted here at any time: the
kernel keeps its file system, loop device and bytes until the last overlay above it is unmounted. After a reboot the
next job mounts it again. `fetch` fetches copies, `eviction` bounds them and their mounts. Hot path.
"""

from __future__ import annotations

import errno
import os

from warmstart.caches.store.layout import Entries, File, Namespace
from warmstart.caches.store.listing import Row
from warmstart.errors import ResourceError
from warmstart.host import files, linux, wire
from warmstart.host.deadline import Deadline
from warmstart.host.files import PATH, closing, ensure_dir, mount_id, open_regular, opened_dir, read_small
from warmstart.lean import TYPE_CHECKING, Collection, Iterator, Sequence, contextmanager

if TYPE_CHECKING:
    from warmstart.store.client import StoreClient

BUNDLE, ABOUT, FETCHING = ".sqsh", ".json", ".fetching"
LARGEST = 64 << 20  # bytes of what is known about a copy
_LOCK_PAUSE_S = 0.005


class FetchOverBudget(ResourceError):
    """A bundle is not on the node, and its fetch takes more bytes or time than there are."""

    code = "fetch-over-budget"
    template = "bundle {bundle}: {problem}"
    hint = "later jobs go on with what came; raise seed.fetch_budget in the policy, or what nodes keep of its kind"


def get(directory: str, where: Namespace, row: Row, *, store: StoreClient, most_bytes: int, deadline: Deadline) -> int:
    """Have a copy of a bundle in a directory; return how many bytes were fetched for it, 0 if it was there.

    Raises `FetchOverBudget` if the fetch takes more than `most_bytes`, is not complete at the deadline, or another job
    is still at it; `OSError` and `DiskFailed` if the node's disk fails, and the errors of the store.
    """
    if is_here(directory, row):
        return 0
    from warmstart.seed import fetch

    return fetch.get(directory, where, row, store, most_bytes, deadline)


def is_here(directory: str, row: Row) -> bool:
    """Return whether the node has a copy of a bundle, and record its use."""
    path = path_of(directory, row.sha256)
    try:  # by name, in a directory of root's alone: ten bundles are thirty calls less
        os.utime(path, follow_symlinks=False)
        return os.stat(path, follow_symlinks=False).st_size == row.size
    except FileNotFoundError:
        return False


def path_of(directory: str, sha256: str) -> str:
    """Return the path of a copy's squashfs file."""
    return f"{directory}/{sha256}{BUNDLE}"


def entries_of(directory: str, sha256: str, names: Collection[str] = ()) -> Entries:
    """Return all entries of a copy with their files.

    Raises `FileNotFoundError` if this node has no such copy, `BundleDamaged` if it lacks one of the `names`.
    """
    with opened_dir(directory) as fd:
        raw = wire.parse(read_small(sha256 + ABOUT, LARGEST, fd).partition(b"\n")[2])
    if not raw.keys() >= {*names}:
        from warmstart.caches.store.bundles import BundleDamaged

        raise BundleDamaged(bundle=sha256, problem="its listing names entries that it lacks")
    return {entry: {path: File(*file) for path, file in found.items()} for entry, found in raw.items()}


def mounted(directory: str, paths: Sequence[str], deadline: Deadline) -> list[int]:
    """Return descriptors (O_PATH) of the roots of copies' mounts; mount the copies that are not mounted.

    Raises `OSError` if the kernel has no squashfs or no free loop device, if a copy is damaged, or (`ETIME`) if another
    prolog held the lock until the deadline; then no descriptor stays open.
    """
    roots: list[int] = []
    made = 0
    try:
        with exclusive(directory, deadline) as dir_fd:
            below = mount_id(dir_fd)
            for path in paths:
                name = os.path.basename(path).partition(".")[0]
                roots.append(_root(dir_fd, name))
                if mount_id(roots[-1]) == below:
                    os.close(roots.pop())
                    _mount(path, f"{directory}/{name}")
                    roots.append(os.open(name, PATH, dir_fd=dir_fd))
                    made += 1
            if made:
                from warmstart.seed import eviction

                eviction.bound_mounts(dir_fd, os.path.dirname(paths[0]), 2 * made)
    except BaseException:
        for root in roots:
            os.close(root)
        raise
    return roots


@contextmanager
def exclusive(directory: str, deadline: Deadline) -> Iterator[int]:
    """Hold the lock for mounting and unmounting, a flock on the directory; yields a descriptor of it."""
    try:
        fd = os.open(directory, files.DIRECTORY)
    except FileNotFoundError:
        ensure_dir(directory, 0o700)
        fd = os.open(directory, files.DIRECTORY)
    with closing(fd):
        if not files.wait_flock(fd, deadline, _LOCK_PAUSE_S):
            raise OSError(errno.ETIME, "another job of this node is still mounting", directory)
        yield fd


def _root(dir_fd: int, name: str) -> int:
    """Open the mount point of a copy; make it if it is missing."""
    try:
        return os.open(name, PATH, dir_fd=dir_fd)
    except FileNotFoundError:
        os.mkdir(name, 0o700, dir_fd=dir_fd)
        return os.open(name, PATH, dir_fd=dir_fd)


def _mount(path: str, target: str) -> None:
    from warmstart.host import loops

    with closing(open_regular(path)) as file:
        device, source = loops.attach(file, path)
    try:
        linux.mount(source, target, "squashfs", linux.MS_RDONLY | linux.RESTRICTED)
    finally:
        os.close(device)  # the mount keeps the device; if mounting failed, this frees it

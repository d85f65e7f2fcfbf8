"""The node's copies of bundles: each is fetched once, mounted once, and shown to jobs as clones of that mount.

Jobs have clones of its mount, so it can be unmounted here at any time: the kernel keeps its file system, loop device
and bytes until the last overlay above it is unmounted. After a reboot the next job mounts it again. `copies` says what
lies where, `fetch` fetches, `eviction` bounds copies and their mounts. Hot path.
"""

from __future__ import annotations

import os

from warmstart.caches.store.layout import Namespace
from warmstart.caches.store.listing import Row
from warmstart.host import linux
from warmstart.host.deadline import Deadline
from warmstart.host.files import PATH, closing, mount_id, open_regular
from warmstart.lean import TYPE_CHECKING, Sequence
from warmstart.seed.copies import exclusive, is_here

if TYPE_CHECKING:
    from warmstart.store.client import StoreClient


def get(directory: str, where: Namespace, row: Row, *, store: StoreClient, most_bytes: int, deadline: Deadline) -> int:
    """Have a copy of a bundle in a directory; return how many bytes were fetched for it, 0 if it was there.

    Raises `FetchOverBudget` if the fetch takes more than `most_bytes`, is not complete at the deadline, or another job
    is still at it; `OSError` and `DiskFailed` if the node's disk fails, and the errors of the store.
    """
    if is_here(directory, row):
        return 0
    from warmstart.seed import fetch

    return fetch.get(directory, where, row, store, most_bytes, deadline)


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

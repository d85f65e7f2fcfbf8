"""This node's bundles, mounted: once for each, whichever of its jobs needs one first (design, Seed).

`<node>/layers/` is root's, 0700; `<sha256>/` in it shows the copy of that name, `ro,nosuid,nodev`. Jobs get clones of
these mounts, so one may be unmounted here at any time: the file system, its loop device and the copy's bytes live
until the last overlay that has it below is gone. After a reboot nothing is mounted, and the next job mounts anew.
Never on a warm hook's path without seeding: ctypes is slow to import.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from warmstart.host import files, linux, loops
from warmstart.host.deadline import Deadline
from warmstart.host.files import PATH, ensure_dir, mount_id, names_in, open_regular, opened_dir
from warmstart.seed.node_cache import Copy

_LOCK_PAUSE = 0.005


def mounted(directory: str, copy: Copy, deadline: Deadline) -> int:
    """Return a descriptor (O_PATH) of the root of a copy's mount, made where there is none.

    `OSError`: the kernel has no squashfs or loop device to give, the copy is damaged, or (`ETIME`) another prolog was
    at work here until the deadline.
    """
    ensure_dir(directory, 0o700)
    with _alone(directory, deadline) as dir_fd:
        with suppress(FileExistsError):
            os.mkdir(copy.sha256, 0o700, dir_fd=dir_fd)
        fd = os.open(copy.sha256, PATH, dir_fd=dir_fd)
        if mount_id(fd) != mount_id(dir_fd):
            return fd
        os.close(fd)
        _mount(copy, os.path.join(directory, copy.sha256))
        return os.open(copy.sha256, PATH, dir_fd=dir_fd)


def unmount(directory: str, sha256: str, deadline: Deadline, *, unless: Callable[[], bool] = lambda: False) -> None:
    """Unmount a copy and remove its mount point, so that no namespace of a job keeps it; nothing there is fine.

    `unless` is asked when nobody else can ask for the mount any more, and keeps it.
    """
    with suppress(FileNotFoundError), _alone(directory, deadline) as dir_fd:
        if unless():
            return
        with suppress(OSError):  # EINVAL: nothing is mounted
            linux.unmount(sha256, dir_fd)
        os.rmdir(sha256, dir_fd=dir_fd)


def left(directory: str) -> list[str]:
    """Return the SHA-256 of all copies that have a mount point here."""
    return names_in(directory)


def _mount(copy: Copy, target: str) -> None:
    file = open_regular(copy.path)
    try:
        device, path = loops.attach(file, copy.path)
    finally:
        os.close(file)
    try:
        linux.mount(path, target, "squashfs", linux.MS_RDONLY | linux.RESTRICTED)
    finally:
        os.close(device)  # the mount holds it now; where there is none it is freed


@contextmanager
def _alone(directory: str, deadline: Deadline) -> Iterator[int]:
    """Keep others from mounting and unmounting here; the lock is the directory itself."""
    with opened_dir(directory) as fd:
        if not files.take(fd, deadline, _LOCK_PAUSE):
            raise OSError(errno.ETIME, "another job of this node is still mounting", directory)
        yield fd

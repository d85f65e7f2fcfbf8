"""Probes of the store's file system, run as the store's owner in a temporary directory of the store.

Every function runs in a worker, and hangs if the file system hangs.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from warmstart.caches.store.layout import CACHES, scopes
from warmstart.host import access, files
from warmstart.host.files import opened_dir

PREFIX = ".doctor-"
DEAD_AFTER = 3600.0  # seconds; a doctor that was killed left older directories
MOST_SCOPES = 1000  # looked at; a large store has tens of thousands
_held: list[int] = []  # keeps the lock until the process ends


class Look(NamedTuple):
    """The store's owner, and its file system's size and free space in bytes."""

    uid: int
    size: int
    free: int
    inside: tuple[int, ...] = ()  # the uids of what is in it, probes left out


def look(path: str) -> Look:
    """Return the store's owner, space, and whose is what is in it."""
    with opened_dir(path) as fd:
        status, space = os.fstat(fd), os.fstatvfs(fd)
        names = [name for name in os.listdir(fd) if not name.startswith(PREFIX)]
        inside = {os.stat(name, dir_fd=fd, follow_symlinks=False).st_uid for name in names}
    return Look(
        uid=status.st_uid,
        size=space.f_blocks * space.f_frsize,
        free=space.f_bavail * space.f_frsize,
        inside=tuple(inside),
    )


def in_use_for(store: str) -> float:
    """Return how many seconds ago the oldest change was made in a scope of the store's caches, 0.0 without a scope."""
    places = (os.path.join(store, CACHES, name) for name in islice(scopes(store), MOST_SCOPES))
    return max((time.time() - os.stat(place).st_mtime for place in places), default=0.0)


def make_directory(store: str, name: str) -> str:
    """Make the probe's directory (0700) and return its path. Removes those of doctors that were killed."""
    with opened_dir(store) as fd:
        for other in os.listdir(fd):
            if other.startswith(PREFIX) and time.time() - os.stat(other, dir_fd=fd).st_mtime > DEAD_AFTER:
                remove_directory(f"{store}/{other}")
        os.mkdir(f"{PREFIX}{name}", 0o700, dir_fd=fd)
    return f"{store}/{PREFIX}{name}"


def remove_directory(directory: str) -> None:
    """Remove the probe's directory with its files."""
    with suppress(FileNotFoundError), opened_dir(directory) as fd:
        for name in os.listdir(fd):
            files.unlink_if_there(name, fd)
        os.rmdir(directory)


def hold_lock(directory: str, name: str = "lock") -> None:
    """Take a new lock and hold it until this process ends. Raises `OSError` if flock(2) does not work there."""
    fd = os.open(f"{directory}/{name}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if not files.try_flock(fd):
        raise OSError(errno.EAGAIN, "another process holds the lock of a new file")
    _held.append(fd)


def lock_is_free(directory: str, name: str = "lock") -> bool:
    """Return whether this process can take the lock although another holds it."""
    fd = os.open(f"{directory}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return files.try_flock(fd)
    finally:
        os.close(fd)


def link(directory: str) -> int:
    """Make a hard link to the lock file and return its link count. Raises `OSError` if that fails."""
    os.link(f"{directory}/lock", f"{directory}/link")
    return os.stat(f"{directory}/link").st_nlink


def show_a_user(directory: str) -> None:
    """Have a user list and enter the probe's directory, as the folder of that user's reports. Raises `OSError`."""
    with opened_dir(directory) as fd:
        access.allow_entering(fd, 65534)  # nobody


def clock_ahead(directory: str, name: str = "clock") -> float:
    """Return by at least how many seconds the store's clock is ahead of this node's; negative if it is behind."""
    before = time.time()
    fd = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    stamp, after = os.stat(f"{directory}/{name}").st_mtime, time.time()
    return min(0.0, stamp - before) + max(0.0, stamp - after)


def can_list(directory: str) -> bool:
    """Return whether this process can list the private directory of the store's owner."""
    try:
        os.listdir(directory)
    except PermissionError:
        return False
    return True

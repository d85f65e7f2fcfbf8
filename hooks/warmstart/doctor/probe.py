"""Probes of the store's file system, run as the store's owner in a temporary directory of the store.

Every function runs in a worker, and hangs if the file system hangs.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import time
from collections.abc import Collection
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from warmstart.host import files
from warmstart.host.files import opened_dir
from warmstart.store.layout import ARTIFACTS
from warmstart.store.maintenance import scopes

PREFIX = ".doctor-"
DEAD_AFTER = 3600.0  # seconds; a doctor that was killed left older directories
MOST_DIRECTORIES = 20_000
FILES_OF_EACH = 20
MOST_FOUND = 100
MOST_SCOPES = 1000  # looked at; a large store has tens of thousands
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
MOST_LINKS = 40  # in one path, as Linux (path_resolution(7))
_held: list[int] = []  # keeps the lock until the process ends


class Owned(NamedTuple):
    """Who owns a file, directory or link, and who can write it."""

    path: str
    uid: int
    mode: int  # 0 of a link: its own says nothing

    def __str__(self) -> str:
        return f"{self.path} (uid {self.uid}{f', mode {self.mode:04o}' if self.mode else ''})"


class Weak(NamedTuple):
    """What others can change: how many directories were looked at, the first places with why, whether that is all."""

    directories: int
    places: list[Owned]
    is_all: bool


class Look(NamedTuple):
    """The store's owner, mode and what is in it, and its file system's size and free space in bytes.

    Of what is in the store probes do not count.
    """

    uid: int
    mode: int
    size: int
    free: int
    inside: tuple[int, ...] = ()  # the uids of what is in it


def look(path: str) -> Look:
    """Return the store's owner, mode and space."""
    with opened_dir(path) as fd:
        status, space = os.fstat(fd), os.fstatvfs(fd)
        names = [name for name in os.listdir(fd) if not name.startswith(PREFIX)]
        inside = {os.stat(name, dir_fd=fd, follow_symlinks=False).st_uid for name in names}
    return Look(
        uid=status.st_uid,
        mode=stat.S_IMODE(status.st_mode),
        size=space.f_blocks * space.f_frsize,
        free=space.f_bavail * space.f_frsize,
        inside=tuple(inside),
    )


def owned(path: str, status: os.stat_result) -> Owned:
    """Return who owns and who can write what has that status."""
    return Owned(path, status.st_uid, 0 if stat.S_ISLNK(status.st_mode) else stat.S_IMODE(status.st_mode))


def unsafe(places: list[Owned], owners: Collection[int]) -> list[Owned]:
    """Return by which of the places that `above` returned a uid outside `owners` can put something else at the path."""
    return [
        place
        for place in places
        if place.uid not in owners or (place.mode & OTHERS_WRITE and not place.mode & stat.S_ISVTX)
    ]


def closing(places: Collection[Owned], owners: Collection[int] = files.ROOT_ALONE, bits: str = "go-w") -> str:
    """Return the commands after which only `owners` can change some places: nothing else changes, nor below them."""
    theirs = [place.path for place in places if place.uid not in owners]
    others = stat.S_IWOTH if bits == "o-w" else OTHERS_WRITE
    # In a sticky directory others change nothing that is not theirs, once it is root's.
    still = [
        place.path for place in places if place.mode & others and (place.uid in owners or not place.mode & stat.S_ISVTX)
    ]
    commands = [("chown -h root", theirs), (f"chmod {bits}", still)]
    return ", ".join(f"`{command} {shlex.join(paths)}`" for command, paths in commands if paths)


def changeable(paths: list[str]) -> list[Owned]:
    """Return where others than root can change programs, or directories of them: there, below, or on the way there.

    A path that leads to a device is none: a masked unit is a link to /dev/null.
    """
    found = dict[Owned, None]()  # each once, in order
    for path in paths:
        if not (os.path.isfile(path) or os.path.isdir(path)):
            continue
        places = writable_by_others(os.path.realpath(path), 0, MOST_DIRECTORIES).places
        found.update(dict.fromkeys([*unsafe(above(path), files.ROOT_ALONE), *places]))
    return list(found)


def writable_by_others(path: str, owner: int, few_files: int = FILES_OF_EACH) -> Weak:
    """Return what in a directory somebody else than its owner can change: all directories, a few files of each."""
    found: list[Owned] = []
    looked, number = [path], 0
    for directory in looked:
        if number == MOST_DIRECTORIES:
            return Weak(number, found[:MOST_FOUND], is_all=False)
        number += 1
        few = few_files
        with suppress(FileNotFoundError, PermissionError, NotADirectoryError):  # gone, or another's, as is told; a file
            found += _weak(directory, os.lstat(directory), owner)
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        looked.append(entry.path)
                    elif few and entry.is_file(follow_symlinks=False):
                        few -= 1
                        with suppress(FileNotFoundError):
                            found += _weak(entry.path, entry.stat(follow_symlinks=False), owner)
    return Weak(number, found[:MOST_FOUND], is_all=True)


def _weak(path: str, status: os.stat_result, owner: int) -> list[Owned]:
    return [owned(path, status)] if files.weakness(status, (0, owner)) else []


def in_use_for(store: str) -> float:
    """Return how many seconds ago the oldest change was made in a scope of the store's caches, 0.0 without a scope."""
    places = (os.path.join(store, ARTIFACTS, name) for name in islice(scopes(store), MOST_SCOPES))
    return max((time.time() - os.stat(place).st_mtime for place in places), default=0.0)


def above(path: str) -> list[Owned]:
    """Return the directories and links that decide which directory `path` is, in the order in which they are resolved.

    Without `/` and that directory itself. Needs no permission to read them. Raises `OSError`.
    """
    found: list[Owned] = []
    here, names = "/", path.split("/")
    links = 0
    while names:
        name = names.pop(0)
        if name in ("", ".", ".."):
            here = os.path.dirname(here) if name == ".." else here
            continue
        entry = os.path.join(here, name)
        status = os.lstat(entry)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(entry)
            names[:0] = target.split("/")
            here = "/" if target.startswith("/") else here
        else:
            here = entry
        found.append(owned(entry, status))
    return [place for place in found if place.path != here]


def owner(path: str) -> int:
    """Return the uid of a directory's owner. Needs no permission to read the directory."""
    return os.stat(path, follow_symlinks=False).st_uid


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
        files.allow_entering(fd, 65534)  # nobody


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

"""What launchers have: images `NAME.sqsh`, and their locks `NAME.sqsh.lock`. Runs as the store's owner.

Their lock is a flock(2), as flock(1), py-filelock and C++ programs take it. Its file is in a directory that others may
write: it may be a FIFO, a link, or locked for ever. So we wait for it until a deadline only, go on without it, and
never unlink it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from warmstart.host import files
from warmstart.host.files import is_at, opened_dir, unlink_if_there, weakness
from warmstart.images.reference import DOCKER_HUB, Reference
from warmstart.images.store.layout import IMAGE

LOCK = ".sqsh.lock"
BUSY = "busy"
# O_NONBLOCK: opening a FIFO does not hang. No O_CREAT: the kernel refuses it for files of others in sticky directories
# (proc(5), protected_regular).
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SANITISED = str.maketrans(dict.fromkeys("/:@#", "_"))

_held: list[int] = []  # keeps locks until this process ends


def names_of(reference: Reference) -> list[str]:
    """Return the names that launchers give to the image: each spelling through `sed 's/[/:@#]/_/g'`, shortest first."""
    full = reference.canonical()
    spellings = [full]
    if reference.registry == DOCKER_HUB:
        short = full.removeprefix(f"{DOCKER_HUB}/")
        spellings = [short.removeprefix("library/"), short, full]
    return list(dict.fromkeys(spelling.translate(_SANITISED) for spelling in spellings))


def try_lock(directory: str, name: str) -> str:
    """Take the launchers' lock of an image until this process ends, without waiting.

    Returns "", `BUSY`, or why there is none. The file stays.
    """
    try:
        with opened_dir(directory) as folder:
            fd = _open(name + LOCK, folder)
            try:
                problem = _lock(fd, name + LOCK, folder)
            except OSError:
                os.close(fd)
                raise
    except OSError as error:
        return f"{error.strerror}: {directory}/{name}{LOCK}"
    if problem:
        os.close(fd)
        return problem
    _held.append(fd)
    return ""


def _open(name: str, folder: int) -> int:
    for flags in (os.O_RDWR, os.O_RDONLY):  # flock(2) needs no right to write
        with suppress(PermissionError):
            try:
                return os.open(name, flags | _OPEN, dir_fd=folder)
            except FileNotFoundError:
                fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o666, dir_fd=folder)
                os.fchmod(fd, 0o666)  # launchers of other users open it for writing: `exec 9>NAME.sqsh.lock`
                return fd
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _lock(fd: int, name: str, folder: int) -> str:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise OSError(errno.EINVAL, "not a regular file with one link")
    # Some releases of py-filelock unlink the file on release, and a lock on an unlinked file excludes nobody.
    return "" if files.try_flock(fd) and is_at(fd, name, folder) else BUSY


def link(directory: str, names: Sequence[str], path: str) -> int:
    """Make links to an image under these names; return how many.

    Makes none if anybody but this account and root can write the directory, and never replaces a file that is not a
    link.
    """
    linked = 0
    with opened_dir(directory) as folder:
        status = os.fstat(folder)
        if weakness(status, (0, os.geteuid())):
            return 0
        for name in names:
            temp = f".{name[:200]}.{os.getpid()}"
            unlink_if_there(temp, folder)
            os.symlink(path, temp, dir_fd=folder)
            try:
                if _is_link_or_absent(name + IMAGE, folder):
                    os.rename(temp, name + IMAGE, src_dir_fd=folder, dst_dir_fd=folder)
                    linked += 1
            finally:
                unlink_if_there(temp, folder)
    return linked


def forget(directory: str, images: str) -> int:
    """Remove the links that lead to images which are gone from the directory `images`; return how many."""
    gone = 0
    with opened_dir(directory) as folder:
        for name in os.listdir(folder):
            with suppress(OSError):  # it is no link, or not ours to remove
                if os.path.dirname(os.readlink(name, dir_fd=folder)) == images and _is_dangling(name, folder):
                    os.unlink(name, dir_fd=folder)
                    gone += 1
    return gone


def _is_dangling(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    return False


def _is_link_or_absent(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True

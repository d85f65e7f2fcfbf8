"""What launchers have: images `NAME.sqsh`, and their locks `NAME.sqsh.lock`. Runs as the store's owner.

Their lock is a flock(2), as flock(1), py-filelock and C++ programs take it. Its file is in a directory that others may
write: it may be a FIFO, a link, or locked for ever. So we wait for it until a deadline only, go on without it, and
never unlink it.

Adoption copies an image that a launcher left. The directory must be named by the policy, and only root, the store's
owner and the owners that the policy names for it may be able to write it; the file must belong to one of these. The
bytes are copied to an inode of root's on this node, which is validated and published like the result of an import. An
adopted image is identified by its own SHA-256, which is no registry's digest, so it serves tags only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from warmstart.host import files
from warmstart.host.files import (
    PATH,
    Untrusted,
    copy_hashed,
    is_at,
    open_regular,
    opened_dir,
    opened_trusted,
    unlink_if_there,
    weakness,
)
from warmstart.images.places import Copied
from warmstart.images.reference import DOCKER_HUB, Reference
from warmstart.images.store.layout import IMAGE

LOCK = ".sqsh.lock"
BUSY = "busy"
# O_NONBLOCK: opening a FIFO does not hang. No O_CREAT: the kernel refuses it for files of others in sticky directories
# (proc(5), protected_regular).
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SANITISED = str.maketrans(dict.fromkeys("/:@#", "_"))

_held: dict[tuple[str, str], int] = {}


class Adopt(NamedTuple):
    """A directory, and the uids whose images in it are adopted."""

    directory: str
    owners: tuple[int, ...]


def names_of(reference: Reference) -> list[str]:
    """Return the names that launchers give to the image: each spelling through `sed 's/[/:@#]/_/g'`, shortest first."""
    full = reference.canonical()
    spellings = [full]
    if reference.registry == DOCKER_HUB:
        short = full.removeprefix(f"{DOCKER_HUB}/")
        spellings = [short.removeprefix("library/"), short, full]
    return list(dict.fromkeys(spelling.translate(_SANITISED) for spelling in spellings))


def is_unambiguous(reference: Reference) -> bool:
    """Return whether launchers' names for the image can mean no other one: a `_` may stand for another character."""
    return "_" not in reference.canonical()


def try_lock(directory: str, name: str) -> str:
    """Take the launchers' lock of an image without waiting; return "", `BUSY`, or why there is none."""
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
    _held[directory, name] = fd
    return ""


def unlock(directory: str, name: str) -> None:
    """Release the launchers' lock; the file stays."""
    fd = _held.pop((directory, name), None)
    if fd is not None:
        os.close(fd)


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


def adopt(target: int, directories: Sequence[Adopt], names: Sequence[str], not_before: float) -> Copied | str:
    """Copy the first image that may be adopted into the descriptor `target`.

    `names` are without ending. A file counts only if its mtime is `not_before` (seconds since the epoch) or later. If
    none is adopted, return the reason, "" if there is no such file.
    """
    problem = ""
    for directory, owners in directories:
        for name in names:
            try:
                return _copy(target, directory, name + IMAGE, (0, os.geteuid(), *owners), not_before)
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = f"{directory}/{name}{IMAGE}: {error.strerror}"
                os.ftruncate(target, 0)
                os.lseek(target, 0, os.SEEK_SET)
    return problem


def _copy(target: int, directory: str, name: str, owners: tuple[int, ...], not_before: float) -> Copied:
    with opened_dir(directory) as folder:
        fd = open_regular(name, folder)
        try:
            _check_directories(directory, folder, owners)
            status = os.fstat(fd)
            if weakness(status, owners) or status.st_nlink != 1:
                raise _refusal(f"belongs to uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}")
            if status.st_mtime < not_before:
                raise FileNotFoundError  # too old for a tag: treated as missing
            sha256 = copy_hashed(fd, target).sha256
            if _stamp(os.fstat(fd)) != _stamp(status):
                raise _refusal("changed while it was read")
        finally:
            os.close(fd)
    return Copied(os.path.join(directory, name), sha256, status.st_mtime)


def _check_directories(directory: str, folder: int, owners: tuple[int, ...]) -> None:
    try:
        with opened_trusted(directory, owners, flags=PATH) as trusted:
            is_same = os.path.samestat(os.fstat(trusted), os.fstat(folder))
    except Untrusted as error:
        raise _refusal(f"is below {error.filename}, which {error.strerror}") from error
    if not is_same:
        raise _refusal("was moved while it was read")


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _refusal(problem: str) -> OSError:
    return OSError(errno.EPERM, problem)

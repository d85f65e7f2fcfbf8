"""Recursive removal of a tree in which a job writes, mounts and nests as it likes. Not on a prolog's warm path."""

from __future__ import annotations

import errno
import os

from warmstart.host.deadline import Deadline
from warmstart.host.files import DIRECTORY, closing, mount_id
from warmstart.lean import suppress

_MOST_MOUNTS = 16  # on one name; more are left for the next call
# A removal keeps this many names of directories in each of so many topmost levels; it reads the rest again.
_NAMES_KEPT, _LEVELS_KEPT = 1024, 64
_IDENTITY = 16  # bytes of a device and an inode number


def remove_tree(dir_fd: int, name: str, deadline: Deadline) -> None:
    """Remove `name` in `dir_fd` recursively, at any depth; do nothing if it is missing.

    Mounts in the tree (a job can mount a FUSE file system of its own) are detached, and their files are not touched.
    Raises `EXDEV` if detaching fails, `EAGAIN` if a process moves a directory of the tree meanwhile, and `ETIME` at the
    deadline; the next call continues with what is left.
    """
    mount = mount_id(dir_fd)
    try:
        top = _open_listable(name, dir_fd, mount)
    except FileNotFoundError:
        return
    except NotADirectoryError:  # a file or a link
        os.unlink(name, dir_fd=dir_fd)
        return
    _empty(top, mount, deadline)
    os.rmdir(name, dir_fd=dir_fd)


def _empty(fd: int, mount: str, deadline: Deadline) -> None:
    """Remove everything below a directory, and close it.

    A job makes as many names in a directory as it likes, and nests as deep, and hard links are in no quota. So names
    are unlinked as they are read, and a level takes some bytes. Only one directory is open at a time; the way back is
    `..`. Nothing is moved, because rename(2) fails between two project ids (EXDEV on XFS and ext4), and users can set
    those of their own directories.
    """
    above = bytearray()  # the identity of each directory above
    kept: list[list[str]] = []  # names of directories in each of the topmost ones
    names: list[str] = []  # of directories in this one
    try:
        while True:
            if not names:
                names = _unlink_up_to_directories(fd, mount, deadline)
            if names:
                _in_time(names[-1], deadline)
                below = _open_unless_removed(names[-1], fd, mount)
                if below is None:
                    names.pop()
                    continue
                above += _identity(fd)
                if len(kept) < _LEVELS_KEPT:
                    kept.append(names)
                names = []
                os.close(fd)
                fd = below
                continue
            if not above:
                return
            back = os.open("..", DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = back
            if _identity(fd) != above[-_IDENTITY:]:
                raise OSError(errno.EAGAIN, "a process moved it during its removal", "..")
            del above[-_IDENTITY:]
            if len(above) < len(kept) * _IDENTITY:
                names = kept.pop()
                os.rmdir(names.pop(), dir_fd=fd)
    finally:
        os.close(fd)


def _identity(fd: int) -> bytes:
    status = os.fstat(fd)
    return status.st_dev.to_bytes(8, "little") + status.st_ino.to_bytes(8, "little")


def _in_time(name: str, deadline: Deadline) -> None:
    if deadline.expired():
        raise OSError(errno.ETIME, "not all removed before the deadline", name)


def _unlink_up_to_directories(fd: int, mount: str, deadline: Deadline) -> list[str]:
    """Unlink what is no directory; return names of directories, not all if they are many, or [] if nothing is left.

    A file system may leave out names if others are unlinked while it is read, so only a pass without any is the end.
    """
    folders: list[str] = []
    is_empty = False
    while not folders and not is_empty:
        is_empty = True
        with os.scandir(fd) as names:  # reads some kilobytes at a time; its end rewinds
            for entry in names:
                is_empty = False
                _in_time(entry.name, deadline)
                if not _unlinked(entry.name, fd, mount):
                    folders.append(entry.name)
                    if len(folders) == _NAMES_KEPT:
                        break
    return folders


def _unlinked(name: str, fd: int, mount: str) -> bool:
    """Unlink a name; return False if it is a directory."""
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError):
        # For a directory unlink(2) fails with EISDIR on Linux, and with EPERM by POSIX. If the cause is another
        # one, removing it as a directory fails, too.
        return False
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        os.close(_open_path(name, fd, mount, 0))  # a file that something is mounted on
        os.unlink(name, dir_fd=fd)
    return True


def _open_unless_removed(name: str, parent: int, mount: str) -> int | None:
    """Remove an empty directory, or open it for listing if something is in it or on it."""
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
            raise
    else:
        return None
    with suppress(FileNotFoundError):
        return _open_listable(name, parent, mount)
    return None


def _open_listable(name: str, parent: int, mount: str) -> int:
    """Open a directory for listing; `EXDEV` if it is not on this mount."""
    with closing(_open_path(name, parent, mount, os.O_DIRECTORY)) as path:
        return os.open(".", DIRECTORY, dir_fd=path)


def _open_path(name: str, parent: int, mount: str, flags: int) -> int:
    """Return an O_PATH descriptor of `name` on this mount, after detaching any mounts on top of it.

    Raises `EXDEV` if one cannot be detached. O_PATH, because opening the root of a FUSE file system for reading waits
    for its daemon, which may never answer.
    """
    for _ in range(_MOST_MOUNTS):
        path = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
        if mount_id(path) == mount:
            return path
        from warmstart.host.linux import detach

        detached = detach(path)
        os.close(path)
        if not detached:
            break
    raise OSError(errno.EXDEV, "something is mounted there", name)

"""Remove a tree that a job could write: by descriptor, across no mount, however deep (threats, row 13)."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from warmstart.host.deadline import Deadline
from warmstart.host.files import DIRECTORY, mount_id

# Deeper directories are moved up before they are entered: descriptors are few, and a job can nest 4,000 deep.
DEEPEST = 48
MOST_MOUNTS = 16  # one over the other; more are left for the next call


class _Removal(NamedTuple):
    top: int
    mount: str
    deadline: Deadline


def remove_tree(dir_fd: int, name: str, deadline: Deadline) -> None:
    """Remove `name` below `dir_fd` with all its content; nothing there is fine.

    What is mounted inside (a job can mount a FUSE file system of its own) is detached and not touched:
    `EXDEV` where that fails. `ETIME` at the deadline: what is left stays under its name, and the next call
    goes on.
    """
    mount = mount_id(dir_fd)
    try:
        top = _open(name, dir_fd, mount)
    except FileNotFoundError:
        return
    except NotADirectoryError:  # a file, or a link wherever it leads
        os.unlink(name, dir_fd=dir_fd)
        return
    try:
        removal = _Removal(top, mount, deadline)
        # Moving deep directories up adds names to the top, so look again until it is empty.
        while os.listdir(top):
            _empty(removal, top, 1)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=dir_fd)


def _empty(removal: _Removal, fd: int, depth: int) -> None:
    for name in os.listdir(fd):
        if removal.deadline.expired():
            raise OSError(errno.ETIME, "not all removed before the deadline", name)
        try:
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            continue
        except (IsADirectoryError, PermissionError):
            # Linux answers EISDIR, POSIX allows EPERM: either way it is a directory, or rmdir says why not.
            _remove_directory(removal, fd, name, depth)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            os.close(_reached(name, fd, removal.mount, 0))  # a file that something is mounted on


def _remove_directory(removal: _Removal, parent: int, name: str, depth: int) -> None:
    try:
        fd = _open(name, parent, removal.mount)
    except FileNotFoundError:
        return
    try:
        if depth >= DEEPEST:
            # A name that the job could not have taken.
            os.rename(name, f".up-{os.urandom(8).hex()}", src_dir_fd=parent, dst_dir_fd=removal.top)
            return
        _empty(removal, fd, depth + 1)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def _open(name: str, parent: int, mount: str) -> int:
    """Open a directory of this mount for listing."""
    path = _reached(name, parent, mount, os.O_DIRECTORY)
    try:
        return os.open(".", DIRECTORY, dir_fd=path)
    finally:
        os.close(path)


def _reached(name: str, parent: int, mount: str, more: int) -> int:
    """Return an O_PATH descriptor of what is on this mount, after what is mounted over it; `EXDEV`.

    O_PATH asks nobody: opening the root of a FUSE file system asks its daemon, which may never answer.
    """
    for _ in range(MOST_MOUNTS):
        path = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | more, dir_fd=parent)
        if mount_id(path) == mount:
            return path
        from warmstart.host.linux import detach

        gone = detach(path)
        os.close(path)
        if not gone:
            break
    raise OSError(errno.EXDEV, "something is mounted there", name)

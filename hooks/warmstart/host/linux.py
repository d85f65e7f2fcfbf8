"""Linux mount calls and id-mapped mounts, for which Python and libc have no names.

Imports ctypes: a warm prolog without seeding does not load it. Whatever a job could change is named by descriptor
(`proc_path`), never by path. Constants of mount(2), umount2(2), open_tree(2), move_mount(2) and
mount_setattr(2) come from the kernel's headers; system call numbers above 423 are the same on all architectures but
alpha. All functions raise plain `OSError`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 1 << 14
MS_PRIVATE = 1 << 18
RESTRICTED = MS_NOSUID | MS_NODEV  # never noexec: cache entries are code

_MNT_DETACH = 2  # umount(2): at once for the name, later for those who use it
_UMOUNT_NOFOLLOW = 8

_AT_EMPTY_PATH = 0x1000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x100000
_AT_FDCWD = -100

_CLONE_NEWUSER = 0x10000000


class _Attributes(ctypes.Structure):
    """`struct mount_attr` of mount_setattr(2), its first version."""

    _fields_ = [  # the shape that ctypes asks for
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def proc_path(fd: int) -> str:
    """Return a path that leads to what is open, whatever has happened to its name."""
    return f"/proc/self/fd/{fd}"


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount `source`; `EINVAL` and others as the file system says."""
    check(libc().mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()))


def bind(source: str, target: str) -> None:
    """Show at `target` what is at `source`, with the flags that the source has."""
    mount(source, target, "none", MS_BIND)


def make_private(target: str) -> None:
    """Let no mount on or below `target` reach a copy of it, and none of a copy reach it."""
    mount("none", target, "none", MS_PRIVATE)


def make_read_only(path_fd: int) -> None:
    """Remount read-only the file system whose mount's root `path_fd` is; `EBUSY` while a file is open for writing."""
    mount("none", proc_path(path_fd), "none", MS_REMOUNT | MS_RDONLY | RESTRICTED)


def clone(path_fd: int) -> int:
    """Return a copy, attached nowhere, of the mount whose root `path_fd` is."""
    # open_tree with AT_EMPTY_PATH takes the descriptor itself.
    result = libc().syscall(_OPEN_TREE, path_fd, b"", _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH)
    return int(check(result))


def map_ids(mount_fd: int, userns_fd: int) -> None:
    """Show the files of an unattached mount with the ids of a user namespace; `EINVAL` where the kernel can't."""
    attributes = _Attributes(attr_set=_MOUNT_ATTR_IDMAP, userns_fd=userns_fd)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    check(libc().syscall(_MOUNT_SETATTR, mount_fd, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), size))


def attach(mount_fd: int, target: str) -> None:
    """Put an unattached mount at `target`."""
    move = (mount_fd, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH)
    check(libc().syscall(_MOVE_MOUNT, *move))


def unmount(name: str, dir_fd: int) -> bool:
    """Unmount what was mounted last at `name` in `dir_fd`, detached while somebody uses it; return whether nobody did.

    Not by a descriptor of the mount: that would be somebody. A job may own `dir_fd`; a link there is not followed, and
    what else it has mounted under that name is its own. `EINVAL` where nothing is mounted.
    """
    umount2 = libc().umount2
    with working_in(dir_fd):
        target = name.encode()
        if umount2(target, _UMOUNT_NOFOLLOW) == 0:
            return True
        check(umount2(target, _UMOUNT_NOFOLLOW | _MNT_DETACH))
        return False


def detach(path_fd: int) -> bool:
    """Unmount the mount whose root `path_fd` (O_PATH) is; return whether it went.

    By descriptor, so no name that a job can change is looked up again.
    """
    return bool(libc().umount2(proc_path(path_fd).encode(), _MNT_DETACH) == 0)


@contextmanager
def working_in(dir_fd: int) -> Iterator[None]:
    """Have relative names mean what lies in `dir_fd`: a mount's options have room for few long paths."""
    before = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchdir(dir_fd)
        try:
            yield
        finally:
            os.fchdir(before)
    finally:
        os.close(before)


def libc() -> ctypes.CDLL:
    """Return the C library; its errno is what `check` raises."""
    return ctypes.CDLL(None, use_errno=True)


def check(result: int, subject: str | None = None) -> int:
    """Return the result of a libc call; `OSError` with its errno, and `subject` as its file, if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)
    return result


def user_namespace(uid: int, gid: int) -> int:
    """Return a descriptor of a new user namespace that maps 0 to `uid` and `gid`; `OSError` where the kernel refuses.

    A child makes it, since a process can't leave one, and has ended when this returns. It holds no mounts.
    """
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    pid = os.fork()
    if not pid:
        _enter_user_namespace(ready_write, go_read, (ready_read, go_write))
    os.close(ready_write)
    os.close(go_read)
    try:
        answer = os.read(ready_read, 1)
        if answer != b"\0":
            number = answer[0] if answer else 0
            raise OSError(number, os.strerror(number), "user namespace")
        for name, outside in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write(f"0 {outside} 1")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.close(go_write)  # the child ends
        os.waitpid(pid, 0)


def _enter_user_namespace(ready: int, go: int, others: tuple[int, int]) -> NoReturn:
    """Enter a new user namespace, write 0 or the errno to `ready`, and end when `go` is closed."""
    try:
        for fd in others:
            os.close(fd)
        failed = ctypes.get_errno() if libc().unshare(_CLONE_NEWUSER) else 0
        os.write(ready, bytes([failed]))
        os.read(go, 1)
    finally:
        os._exit(0)

"""A user who does to a file that others read, too, whatever the kernel lets its owner or a reader do.

All of it works on a file system of the kernel's, also where it is mounted read-only: a lease or a lock is the inode's.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
_FS_IOC_SETFLAGS = 0x40086602
_IMMUTABLE, _APPEND = 0x10, 0x20
_IN_OPEN, _IN_ACCESS = 0x20, 0x1
_FAN_REPORT_FID, _FAN_OPEN = 0x200, 0x20
_ACL = "system.posix_acl_access"
_NOBODY_READS = struct.pack("<I" + 3 * "HHI", 2, 0x01, 0, 0, 0x04, 0, 0, 0x20, 0, 0)
_GREATEST = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0)  # struct flock: a lock for reading of all


def _called(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _watched(path: Path) -> int:
    watch = _called(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    _called(_LIBC.inotify_add_watch(watch, os.fsencode(path), _IN_OPEN | _IN_ACCESS))
    return watch


def _marked(path: Path) -> None:
    """Mark the file for fanotify(7), as users may from Linux 5.13 on; the group lasts as long as its process."""
    group = _called(_LIBC.fanotify_init(_FAN_REPORT_FID, os.O_RDONLY))
    at = ctypes.c_int(-100)
    _called(_LIBC.fanotify_mark(group, 1, ctypes.c_uint64(_FAN_OPEN), at, os.fsencode(path)))


def _meddle(path: Path) -> dict[str, str]:
    """Do all of it; return what became of each, "yes" or the name of an error. What was taken is kept."""
    fd = os.open(path, os.O_RDONLY)
    marks = bytearray(struct.pack("i", _IMMUTABLE | _APPEND))
    acts: dict[str, Callable[[], object]] = {
        "flock": lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
        "lock": lambda: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _GREATEST),
        "chattr": lambda: fcntl.ioctl(fd, _FS_IOC_SETFLAGS, marks),
        "xattr": lambda: os.setxattr(path, "user.mine", b"x"),
        "acl": lambda: os.setxattr(path, _ACL, _NOBODY_READS),
        "chmod": lambda: path.chmod(0),
        "times": lambda: os.utime(path, (1, 1)),
        "fanotify": lambda: _marked(path),
        "lease": lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK),  # last: it is broken by whoever opens
    }
    return {name: _tried(act) for name, act in acts.items()}


def _tried(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "yes"


@contextmanager
def meddling(ids: tuple[int, int], path: Path) -> Iterator[dict[str, str]]:
    """Have a user, by uid and gid, do all of it to a file, and keep what that gave; yield what became of each.

    When the `with` is left, the user has heard nothing of what others did meanwhile.
    """
    told, tell = os.pipe()
    stay, leave = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(leave)
        _meddle_until(stay, tell, ids, path)
    os.close(stay)
    os.close(tell)
    try:
        with open(told, "rb", buffering=0) as pipe:
            yield json.loads(pipe.readline())
            os.close(leave)
            assert pipe.readline() == b"heard 0 bytes\n"
    finally:
        with suppress(OSError):
            os.close(leave)
        os.waitpid(pid, 0)


def _meddle_until(end: int, tell: int, ids: tuple[int, int], path: Path) -> NoReturn:
    try:
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # a lease is wanted back: the kernel waits
        become(ids)
        watch = _watched(path)
        done = _meddle(path)
        _heard(watch)  # of what this process did itself
        os.write(tell, json.dumps(done).encode() + b"\n")
        os.read(end, 1)
        os.write(tell, f"heard {_heard(watch)} bytes\n".encode())
    finally:
        os._exit(0)


def _heard(watch: int) -> int:
    try:
        return len(os.read(watch, 1 << 16))
    except BlockingIOError:
        return 0


def stopped(ids: tuple[int, int], path: Path, content: bytes) -> list[str]:
    """Return what another user cannot do with that file, who opens, locks and reads it as programs do."""
    answer, tell = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            become(ids)
            os.write(tell, json.dumps(_use(path, content)).encode())
        finally:
            os._exit(0)
    os.close(tell)
    with open(answer, "rb") as pipe:
        found: list[str] = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return found


def _use(path: Path, content: bytes) -> list[str]:
    problems = []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without it the lease's time passes first
    except OSError as error:
        return [f"open: {error.strerror}"]
    for name, how in (("exclusive", fcntl.LOCK_EX), ("shared", fcntl.LOCK_SH)):
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except OSError as error:
            problems.append(f"flock {name}: {error.strerror}")
    if os.read(fd, len(content) + 1) != content:
        problems.append("read")
    return problems


def become(ids: tuple[int, int]) -> None:
    """Be a user, by uid and gid, without any other group."""
    os.setgroups([])
    os.setresgid(ids[1], ids[1], ids[1])
    os.setresuid(ids[0], ids[0], ids[0])

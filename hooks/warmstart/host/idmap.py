"""A user namespace in which id 0 is a job's: what an id-mapped mount takes its mapping from (mount_setattr(2)).

Never on a warm hook's path without seeding: it forks, and ctypes is slow to import.
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWUSER = 0x10000000


def user_namespace(uid: int, gid: int) -> int:
    """Return a descriptor of a new user namespace that maps 0 to `uid` and `gid`; `OSError` where none is to be had.

    A child makes it, for whoever enters one can't leave it, and is gone before this returns. It holds no mounts.
    """
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    pid = os.fork()
    if not pid:
        _be_in_a_new_one(ready_write, go_read, (ready_read, go_write))
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


def _be_in_a_new_one(ready: int, go: int, others: tuple[int, int]) -> None:
    """Enter a new namespace, say so (0, or the error's number), and wait until nobody needs this process."""
    try:
        for fd in others:
            os.close(fd)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = ctypes.get_errno() if libc.unshare(CLONE_NEWUSER) else 0
        os.write(ready, bytes([failed]))
        os.read(go, 1)
    finally:
        os._exit(0)

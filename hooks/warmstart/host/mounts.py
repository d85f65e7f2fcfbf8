"""Detach what somebody mounted inside a tree of ours. Never on a warm hook's path: ctypes is slow to import."""

from __future__ import annotations

import ctypes

MNT_DETACH = 2  # umount(2): at once for the name, later for those who use it


def detach(path_fd: int) -> bool:
    """Unmount the mount whose root `path_fd` (O_PATH) is; return whether it went.

    By descriptor, so no name that a job can change is looked up again.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.umount2(f"/proc/self/fd/{path_fd}".encode(), MNT_DETACH) == 0)

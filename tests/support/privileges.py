"""Give up root's privileges for good, in a process that a test has forked."""

from __future__ import annotations

import os


def drop_to(uid: int, gid: int) -> None:
    """Change to this uid and gid, with no other groups."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)

"""What root can and others can't: give up its privileges in a forked process, or do without one of them."""

from __future__ import annotations

import os
from collections.abc import Callable


def as_user(uid: int, act: Callable[[], object]) -> bool:
    """Return whether a process with this uid and gid can do something, or gets an `OSError`."""
    pid = os.fork()
    if not pid:
        status = 2
        try:
            drop_to(uid, uid)
            act()
            status = 0
        except OSError:
            status = 1
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 1)
    return status == 0


def drop_to(uid: int, gid: int) -> None:
    if uid == os.geteuid() != 0:
        return  # it is whoever runs the tests
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def make_removable(view: str | os.PathLike[str]) -> None:
    """Let a plain user remove a job's view, which is 0500; root can as it is."""
    if os.geteuid() != 0:
        os.chmod(view, 0o700)

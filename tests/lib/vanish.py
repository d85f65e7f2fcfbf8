"""Make a process vanish at its n-th system call that changes a file system.

One that dies before a call that only reads leaves what it leaves before its next change: those are not counted.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest

from warmstart.host import linux

# Of `os.open` only what may create a file.
CHANGES: dict[ModuleType, tuple[str, ...]] = {
    os: (
        "open", "mkdir", "mknod", "link", "symlink", "rename", "unlink", "rmdir",
        "write", "ftruncate", "chmod", "fchmod", "chown", "fchown", "utime", "setxattr",
    ),
    linux: ("libc",),  # mounts
}  # fmt: skip
VANISHED = 9
# What is there after a call is there before the next one, but for what calls that are not swept do in between.
WHENS = pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.sweep)])


def vanishes(act: Callable[[], object], call: int, when: str) -> bool:
    """Run `act` in a process that vanishes `before` or `after` its n-th call; return whether it got that far.

    If the process fails before that call, the test fails, because later calls would never be reached.
    """
    pid = os.fork()
    if not pid:
        status = 1
        try:
            count_down(call, when)
            act()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0 or is_vanished(status)
    return is_vanished(status)


def is_vanished(status: int) -> bool:
    """Return whether a process vanished, by its exit status."""
    return status in (VANISHED, -signal.SIGKILL)


def count_down(calls: int, when: str) -> None:
    """Make this process vanish `before` or `after` its n-th call of `CHANGES`."""
    left, counted, opened = calls, os.getpid(), os.open

    def vanish() -> None:
        if os.getpid() != counted:  # in a child that does part of the work: the others go with it, if it is root's
            with suppress(PermissionError):
                os.kill(counted, signal.SIGKILL)
        os._exit(VANISHED)

    def vanishing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kw: Any) -> Any:  # noqa: ANN401
            nonlocal left
            if real is opened and not args[1] & os.O_CREAT:
                return real(*args, **kw)
            left -= 1
            if left == 0 and when == "before":
                vanish()
            try:
                return real(*args, **kw)
            finally:
                if left == 0:
                    vanish()

        return call

    for module, names in CHANGES.items():
        for name in names:
            setattr(module, name, vanishing(getattr(module, name)))

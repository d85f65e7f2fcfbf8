"""What a process that parses hostile bytes gives up before it starts (threats, row 7).

Never on a warm hook's path: ctypes is slow to import. Constants are from linux/sched.h and linux/prctl.h.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal

from warmstart.host.worker import Identity, become

CLONE_NEWNET = 0x40000000
CLONE_NEWIPC = 0x08000000
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
MOST_MEMORY = 4 << 30


def confine(identity: Identity) -> None:
    """Become `identity` without network, new privileges, core files, or files of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        _check(libc.unshare(CLONE_NEWNET | CLONE_NEWIPC))
    surrender(identity)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def surrender(identity: Identity) -> None:
    """Become `identity` without a way to new privileges, readable by nobody, dead when its parent is."""
    libc = ctypes.CDLL(None, use_errno=True)
    become(identity)
    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
    # After the change of uid, which clears it (prctl(2)).
    _check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

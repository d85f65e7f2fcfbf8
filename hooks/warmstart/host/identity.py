"""Identities, how a forked child takes one for good, and the errors of calling one.

`WorkerSilent` and `WorkerAnswerMalformed` are here and not in `host.worker`: many handle them, few may call a worker.
Hot path: policy and worker import this module. What `confine` needs (ctypes, resource) is slow to import, and only
the functions that need it do. Constants are from linux/sched.h and linux/prctl.h.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from warmstart.errors import StoreError

_CLONE_NEWNET = 0x40000000
_CLONE_NEWIPC = 0x08000000
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
SIGKILL = 9  # signal(7); the module of that name takes half a millisecond to import
_MOST_MEMORY = 4 << 30


class Identity(NamedTuple):
    """A uid and a gid, never with supplementary groups; `name` is for messages."""

    name: str
    uid: int
    gid: int


ROOT = Identity("root", 0, 0)


class WorkerSilent(StoreError):
    """The child gave no answer in time, or died: mostly a shared file system that hangs."""

    code = "store-unresponsive"
    template = "{function} as {identity}: {problem}"
    hint = "does the shared file system answer on this node (ls, df)?"


class WorkerAnswerMalformed(StoreError):
    """The child's answer is not of the type that its function returns."""

    code = "worker-answer-malformed"
    template = "{function} as {identity}: {problem}"
    hint = "report it: either a bug, or somebody controls that process"


def become(identity: Identity) -> None:
    """Take `identity` for good: real, effective and saved ids; `PermissionError` when that fails."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    if os.getresuid() != (identity.uid,) * 3:
        raise PermissionError(f"cannot become {identity.name}")
    os.umask(0o022)
    os.chdir("/")


def detach() -> None:
    """Replace the hook's stdin and output by /dev/null: slurmd waits until nobody holds them, and we may hang."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def close_others(keep: frozenset[int] | set[int]) -> None:
    """Close all descriptors but these: a lock or a pipe of the hook's must not live on in a child."""
    low = 0
    for fd in sorted(keep):
        if low < fd:  # closerange(n, n) closes everything from n on (close_range(2) with last = -1)
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)


def surrender(identity: Identity) -> None:
    """Become `identity` without a way to new privileges, readable by nobody, dead when its parent is."""
    become(identity)
    _libc_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc_call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    # After the change of uid, which clears it (prctl(2)).
    _libc_call("prctl", _PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def confine(identity: Identity) -> None:
    """Become `identity` without network, new privileges, core files, or files of its own.

    For a process that parses hostile bytes (docs/threats.md, row 7).
    """
    import resource

    if os.geteuid() == 0:
        _libc_call("unshare", _CLONE_NEWNET | _CLONE_NEWIPC)
    surrender(identity)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def _libc_call(function: str, *arguments: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True)[function](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

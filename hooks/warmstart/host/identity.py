"""Identities (uid and gid), how a forked child takes one for good, and the errors of worker calls.

`WorkerSilent` and `WorkerAnswerMalformed` are here and not in `host.worker`, because many modules handle them and few
may import the worker. Hot path: policy and worker import this module. Constants are from linux/sched.h and
linux/prctl.h.
"""

from __future__ import annotations

import os

from warmstart.errors import ResourceError, StoreError
from warmstart.lean import NamedTuple, Sequence, libc

_CLONE_NEWNET = 0x40000000
_CLONE_NEWIPC = 0x08000000
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
SIGKILL = 9  # signal(7); importing `signal` takes half a millisecond
_MOST_MEMORY = 4 << 30  # bytes


class Identity(NamedTuple):
    """A uid and a gid, without supplementary groups; `name` is for messages."""

    name: str
    uid: int
    gid: int


ROOT = Identity("root", 0, 0)


class WorkerSilent(StoreError):
    """The worker did not answer before the deadline, or had no time.

    Usually a shared file system hangs. A user may also stop a process that has their uid, which then alone waits.
    """

    code = "store-unresponsive"
    template = "{what}: {problem}"
    hint = "check that the shared file system answers on this node (ls, df), and that the node is not overloaded"


class WorkerDied(WorkerSilent):
    """The worker ended before it answered: somebody killed it, or a bug. Its code is the same."""

    hint = "submit the job again; the node's kernel log (dmesg) says whether memory ran out"


class ProgramNotStarted(ResourceError):
    """The node has no processes, memory or descriptors left for a program or a worker."""

    code = "program-not-started"
    template = "cannot start {program}: {problem}"
    hint = "find out who has used up the node's processes, memory or open files"


class WorkerAnswerMalformed(StoreError):
    """The worker's answer does not have the type that its function returns."""

    code = "worker-answer-malformed"
    template = "{function} as {identity}: {problem}"
    hint = "report it: this is a bug, or somebody controls that process"


def become(identity: Identity, real_uid: int | None = None, groups: Sequence[int] = ()) -> None:
    """Take `identity` for good: real, effective and saved ids. Raises `PermissionError` if that fails.

    `groups` are its supplementary groups.

    As root, with `real_uid`, that becomes the real id. The process has the same files, but neither uid can trace it,
    read its memory or change its limits: for that, all three ids have to be the caller's (ptrace(2), prlimit(2)).
    """
    uids = (identity.uid,) * 3
    if os.geteuid() == 0:
        uids = (identity.uid if real_uid is None else real_uid, identity.uid, identity.uid)
        os.setgroups(groups)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(*uids)
    if os.getresuid() != uids:
        raise PermissionError(f"cannot become {identity.name}")
    os.umask(0o022)
    os.chdir("/")


def detach() -> None:
    """Redirect stdin, stdout and stderr to /dev/null: slurmd waits until they are closed, and a child may hang."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def close_others(keep: frozenset[int] | set[int]) -> None:
    """Close all descriptors except `keep`, so that a child does not hold the hook's locks and pipes open."""
    low = 0
    for fd in sorted(keep):
        if low < fd:  # closerange(n, n) closes everything from n on (close_range(2) with last = -1)
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)


def surrender(identity: Identity, groups: Sequence[int] = ()) -> None:
    """Become `identity`, unable to gain privileges, not traceable by others, killed when the parent dies."""
    become(identity, groups=groups)
    libc("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    # Set last: a change of uid clears it (prctl(2)).
    libc("prctl", _PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def confine(identity: Identity) -> None:
    """Become `identity` in a sandbox for parsing hostile bytes (docs/threats.md, row 7).

    No network, no new privileges, no new processes, no core files, no writes to files, bounded memory.
    """
    import resource

    if os.geteuid() == 0:
        libc("unshare", _CLONE_NEWNET | _CLONE_NEWIPC)
    surrender(identity)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))

"""Client for root's work that a child process does: joining a namespace is irreversible, and disks and mounts hang."""

from __future__ import annotations

import errno
import os

from warmstart.host import namespaces, remove
from warmstart.host.copying import copy_hashed
from warmstart.host.deadline import Deadline
from warmstart.host.identity import ROOT, Identity, WorkerSilent
from warmstart.host.worker import Worker
from warmstart.lean import Callable, Iterator, contextmanager, libc
from warmstart.paths import Shown


def show_in_namespace(
    namespace: str, run: str, owner: Identity, shown: list[Shown], deadline: Deadline
) -> dict[str, str]:
    """Show in the mount namespace at a path what the list of the run in the directory `run` says.

    Returns the targets that failed, and why. Raises `OSError`, and `WorkerSilent` at the deadline.
    """
    groups = os.getgrouplist(owner.name, owner.gid)
    worker = Worker(ROOT, f"the mount of {' and '.join(item.target for item in shown)}")
    return worker.run(deadline, namespaces.show, namespace, run, owner, groups, shown)


def attach_in_namespace(namespace: int, run: str, paths: list[str], deadline: Deadline) -> None:
    """Show what is mounted below `run` in an open mount namespace. Raises `OSError`, `WorkerSilent`."""
    Worker(ROOT, f"the mounts in {run}", (namespace,)).run(deadline, namespaces.attach, namespace, run, paths)


def remove_in_child(parent: int, name: str, deadline: Deadline) -> None:
    """Remove `name` in the directory `parent` as `remove_tree` does; `ETIME` if it hangs: it is left behind."""
    try:
        _ourselves(parent).run(deadline, remove.remove_tree, parent, name, deadline)
    except WorkerSilent as error:
        raise OSError(errno.ETIME, "not all removed before the deadline", name) from error


@contextmanager
def hashed_in_child(fd: int, deadline: Deadline) -> Iterator[Callable[[], str]]:
    """Hash an open file during a `with`, in a child; yield what waits for the SHA-256, and raises as `Worker.run`."""
    with _ourselves(fd).begin(deadline, _sha256, fd) as sha256:
        yield lambda: sha256(deadline)


def sync_in_child(fd: int, deadline: Deadline) -> None:
    """Write a file system to the disk, of which `fd` is a file that was open before anything was written (syncfs(2)).

    Raises `OSError` if any of it was lost (Linux 5.8), `ETIME` if it takes too long: the child is left behind.
    """
    try:
        _ourselves(fd).run(deadline, _sync, fd)
    except WorkerSilent as error:
        raise OSError(errno.ETIME, "not written before the deadline") from error


def _ourselves(*keep: int) -> Worker:
    return Worker(Identity("root", os.geteuid(), os.getegid()), keep=keep)


def _sha256(fd: int) -> str:
    return copy_hashed(fd).sha256


def _sync(fd: int) -> None:
    libc("syncfs", fd)

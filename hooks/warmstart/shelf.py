"""A node's shelf: what it keeps for later jobs on the disk that the policy names, a folder for each kind. Runs as root.

    <paths.shelf>/                      the admin makes it
    <paths.shelf>/<node>/<folder>/      root, 0700; its flock: shared by who takes something, exclusive by who renames

A run's state names what it has of the shelf, before any of it is shown (`note_held`); an eviction reads these names.
Hot path of jobs on nodes with a shelf.
"""

from __future__ import annotations

import errno
import os

from warmstart.host import files
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_dir, ensure_path, names_in, opened_dir, replace_file
from warmstart.lean import TYPE_CHECKING, Iterator, contextmanager
from warmstart.run.state import using_state

if TYPE_CHECKING:
    from warmstart.policy.keys import Policy

NOT_THERE = "paths.shelf is no directory, and jobs make none, because its disk may not be mounted"
LOCK_S = 10.0
_PAUSE_S = 0.005
_HELD = "tree-"  # before the name of something on the shelf, in a run's state


def folder_of(policy: Policy, node: str, folder: str) -> str:
    """Return the path of a folder of a node's shelf, "" if the policy names no shelf."""
    return f"{policy.paths.shelf}/{node}/{folder}" if policy.paths.shelf else ""


def require(policy: Policy) -> str:
    """Return the shelf's directory, which its admin makes: nobody fills another disk while its own is not mounted.

    Raises `OSError`, `Untrusted` if others could change what lies there.
    """
    assert policy.paths.shelf
    if not os.path.isdir(policy.paths.shelf):
        raise FileNotFoundError(errno.ENOENT, NOT_THERE, policy.paths.shelf)
    ensure_path(policy.paths.shelf, 0o755)
    return policy.paths.shelf


def make(policy: Policy, node: str, folder: str) -> None:
    """Make a folder of a node's shelf. Raises as `require`."""
    with opened_dir(require(policy)) as fd:
        ensure_dir(node, 0o700, fd)
        with opened_dir(node, fd) as own:
            ensure_dir(folder, 0o700, own)


def share(folder: int, deadline: Deadline) -> None:
    """Keep others from renaming what is in an open folder, until it is closed. Raises `OSError`: `ETIME`."""
    if not files.wait_flock(folder, deadline, _PAUSE_S, shared=True):
        raise OSError(errno.ETIME, "what lies on the shelf is still being evicted")


@contextmanager
def locked(folder: int) -> Iterator[None]:
    """Keep all others from taking something of an open folder, and from renaming it. Raises `OSError`: `ETIME`."""
    if not files.wait_flock(folder, after(LOCK_S)):
        raise OSError(errno.ETIME, "others are still at work on the shelf")
    try:
        yield
    finally:
        files.unlock(folder)


def note_held(state: str, job_id: int, name: str) -> None:
    """Note in a run's state that it has something of the shelf, by its name. Raises `FileSystemBroken` or `StateFull`.

    It has it until its state is forgotten.
    """
    with using_state(state), opened_dir(f"{state}/{job_id}") as fd:
        replace_file(fd, _HELD + name, b"", 0o600, durable=False)


def held(state: str) -> dict[str, list[int]]:
    """Return the names of what runs on this node have of its shelf, each with the jobs. Raises `OSError`."""
    found: dict[str, list[int]] = {}
    for job in names_in(state):
        for name in names_in(f"{state}/{job}") if job.isdecimal() else ():
            if name.startswith(_HELD):
                found.setdefault(name.removeprefix(_HELD), []).append(int(job))
    return found

"""Copies of models on this node's shelf. Runs as root; `take` is on the hot path of jobs that name a model.

    <paths.shelf>/<node>/models/   root, 0700; its flock: shared by who takes a set, exclusive by who changes sets
        files/<key>                root, 0444: a copy
        files/<key>.copying        room for one, until it is made by the one process of the node that copies
        sets/<key>/                root, 0555: hard links to the copies of one model, 0, 1, …; its mtime is the last use
        about/<key>.json           `About`
        asked/<key>                empty: a job has named the model then, and no set has been made

A copy without another link is of no set, and goes: a day after it was made, or when its last set goes. A run's state
names a set before anything of it is shown (`shelf.note_held`), and an eviction reads these names.
"""

from __future__ import annotations

import math
import os
import time

from warmstart import shelf as shelves
from warmstart.host import files, wire
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_dir, opened_dir, read_small, replace_file, unlink_if_there, written
from warmstart.host.remove import remove_tree
from warmstart.host.space import Held, allocate, fair_order, room
from warmstart.lean import TYPE_CHECKING, NamedTuple, Sequence, dumps, suppress
from warmstart.paths import NodePaths
from warmstart.wings.models.offered import DAY_S

if TYPE_CHECKING:
    from warmstart.policy.keys import Policy
    from warmstart.run.state import Run

FOLDER = "models"
FILES, SETS, ABOUTS, ASKED = "files", "sets", "about", "asked"
COPYING = ".copying"
FRESH, GONE = ".fresh", ".gone"  # of a set that is being made, or removed
HELD = "model-"  # before the name of a set, in a run's state
REMOVAL_S = 10.0  # of a set's links
_LONGEST_ABOUT = 1 << 16


class About(NamedTuple):
    """What is known of a set."""

    model: str  # the path, without links
    user: str  # whose job asked, or who owns the files that many have one copy of
    uid: int
    scope: str  # that has it, "" if that user alone does
    files: tuple[str, ...]  # keys of its copies, in the order of their links
    size: int  # bytes


class Set(NamedTuple):
    """The copies of one model."""

    name: str
    about: About
    used: float  # seconds since the epoch
    jobs: list[int]  # that have it


def path_of(policy: Policy, node: str) -> str:
    """Return the directory of a node's copies."""
    return shelves.folder_of(policy, node, FOLDER)


def make(policy: Policy, node: str) -> None:
    """Make the directories of a node's copies. Raises `OSError`, `Untrusted` if others could change them."""
    shelves.make(policy, node, FOLDER)
    with opened_dir(path_of(policy, node)) as shelf:
        for name in (FILES, SETS, ABOUTS, ASKED):
            ensure_dir(name, 0o700, shelf)


def take(shelf: str, name: str, paths: NodePaths, run: Run, deadline: Deadline) -> int | None:
    """Return a set's directory, open for `linux.clone`, and note in the state that a run has it; None: there is none.

    Raises `StateFull`, `FileSystemBroken`, and `OSError`; `ETIME` if an eviction held the shelf until the deadline.
    """
    with suppress(FileNotFoundError), opened_dir(shelf) as fd:
        os.stat(f"{SETS}/{name}", dir_fd=fd)
        shelves.share(fd, deadline)
        found = os.open(f"{SETS}/{name}", files.DIRECTORY, dir_fd=fd)
        try:
            shelves.note_held(paths.state, run.job_id, HELD + name)
            os.utime(found)
        except BaseException:
            os.close(found)
            raise
        return found
    return None


def is_second(policy: Policy, node: str, name: str) -> bool:
    """Note that a job has named a model; return whether another one did within a day. Raises as `make`."""
    make(policy, node)
    with opened_dir(f"{path_of(policy, node)}/{ASKED}") as fd:
        before = written(name, fd)
        files.touch(name, fd)
        return 0.0 <= time.time() - before < DAY_S


def sets(shelf: int, paths: NodePaths) -> list[Set]:
    """Return the sets of a shelf, the least recently used first. Raises `OSError`."""
    jobs, found = shelves.held(paths.state), []
    with opened_dir(SETS, shelf) as fd:
        names = [name for name in os.listdir(fd) if "." not in name]
    for name in names:
        with suppress(OSError, ValueError, TypeError):
            data = read_small(f"{ABOUTS}/{name}.json", _LONGEST_ABOUT, shelf)
            about = wire.from_object(About, wire.parse(data))
            used = os.stat(f"{SETS}/{name}", dir_fd=shelf).st_mtime
            found.append(Set(name, about, used, jobs.get(HELD + name, [])))
    return sorted(found, key=lambda item: item.used)


def on_node(policy: Policy, paths: NodePaths) -> list[Set]:
    """Return the sets of a node, the least recently used first. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(path_of(policy, paths.node)) as shelf:
        return sets(shelf, paths)
    return []


def has(shelf: int, key: str) -> bool:
    """Return whether there is a copy, and keep it for another day."""
    with suppress(FileNotFoundError):
        os.utime(f"{FILES}/{key}", dir_fd=shelf, follow_symlinks=False)
        return True
    return False


def exists(shelf: int, name: str) -> bool:
    """Return whether there is a set."""
    with opened_dir(SETS, shelf) as fd:
        return _status(fd, name) is not None


def reserve(shelf: int, key: str, size: int) -> int:
    """Return an open file with room for a copy, until `finish` or `give_up`. Raises `OSError`: `ENOSPC`."""
    with opened_dir(FILES, shelf) as copies:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(key + COPYING, flags, 0o400, dir_fd=copies)
    try:
        os.ftruncate(fd, size)
        allocate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_reserved(shelf: int, key: str) -> bool:
    """Return whether a copy has its room."""
    with opened_dir(FILES, shelf) as copies:
        return _status(copies, key + COPYING) is not None


def finish(shelf: int, key: str, fd: int) -> None:
    """Make a copy that is whole one that sets may have."""
    os.fchmod(fd, 0o444)
    os.fsync(fd)
    with opened_dir(FILES, shelf) as copies:
        os.rename(key + COPYING, key, src_dir_fd=copies, dst_dir_fd=copies)
        os.fsync(copies)


def give_up(shelf: int, keys: Sequence[str] | None = None) -> None:
    """Give back the room of these copies that are not made, or of all. Only the one process that copies may call it."""
    with opened_dir(FILES, shelf) as fd:
        for name in os.listdir(fd):
            if name.endswith(COPYING) and (keys is None or name.removesuffix(COPYING) in keys):
                unlink_if_there(name, fd)


def total(shelf: int) -> int:
    """Return the bytes of all copies, and of those that are being made. Raises `OSError`."""
    with opened_dir(FILES, shelf) as fd:
        return sum(_taken(name, status) for name in os.listdir(fd) if (status := _status(fd, name)))


def add(shelf: int, name: str, about: About) -> None:
    """Make a set of copies that are all there. Raises `OSError`; a set is whole or has no name."""
    with shelves.locked(shelf), opened_dir(FILES, shelf) as copies, opened_dir(SETS, shelf) as fd:
        remove_tree(fd, name + FRESH, after(REMOVAL_S))
        os.mkdir(name + FRESH, 0o700, dir_fd=fd)
        with opened_dir(name + FRESH, fd) as fresh:
            for number, key in enumerate(about.files):
                os.link(key, str(number), src_dir_fd=copies, dst_dir_fd=fresh, follow_symlinks=False)
            os.fchmod(fresh, 0o555)
            os.fsync(fresh)
        with opened_dir(ABOUTS, shelf) as abouts:
            replace_file(abouts, f"{name}.json", dumps(about._asdict()).encode(), 0o600)
        os.rename(name + FRESH, name, src_dir_fd=fd, dst_dir_fd=fd)
        os.fsync(fd)
    with opened_dir(ASKED, shelf) as fd:
        unlink_if_there(name, fd)


def held(shelf: int, paths: NodePaths, uid: int) -> int:
    """Return the bytes of the sets that a user alone has. Raises `OSError`."""
    return sum(item.about.size for item in sets(shelf, paths) if _is_of(item, uid))


def _is_of(item: Set, uid: int) -> bool:
    return item.about.uid == uid and not item.about.scope


def evict(
    shelf: int, paths: NodePaths, keep: int, needed: int = 0, *, before: float = math.inf, uid: int | None = None
) -> list[Set]:
    """Evict sets until `keep` bytes are left, and `needed` ones free; return them. Raises `OSError`.

    With `uid`, of the sets that this user alone has.

    Those that a run has stay, and those that were used after `before`. The least recently used of the user who has most
    go first.
    """
    gone = []
    with shelves.locked(shelf):
        found = [item for item in sets(shelf, paths) if uid is None or _is_of(item, uid)]
        used = total(shelf) if uid is None else sum(item.about.size for item in found)
        excess = max(used - keep, needed - room(shelf) if needed else 0)
        may_go = [not item.jobs and item.used < before for item in found]
        held = [Held(item.about.uid, item.about.size, may) for item, may in zip(found, may_go, strict=True)]
        for number in fair_order(held):
            if excess <= 0:
                break
            excess -= _remove(shelf, found[number])
            gone.append(found[number])
    return gone


def remove(shelf: int, paths: NodePaths, model: str) -> tuple[list[Set], list[Set]]:
    """Remove the sets of a model; return these, and those that stay because a run has them. Raises `OSError`."""
    with shelves.locked(shelf):
        found = [item for item in sets(shelf, paths) if item.about.model == model]
        gone = [item for item in found if not item.jobs]
        for item in gone:
            _remove(shelf, item)
        return gone, [item for item in found if item.jobs]


def sweep(shelf: int) -> None:
    """Remove copies that no set has, unfinished sets, and notes, once they are a day old. Raises `OSError`."""
    old = time.time() - DAY_S
    with shelves.locked(shelf):
        with opened_dir(SETS, shelf) as fd:
            for name in os.listdir(fd):
                if "." in name and written(name, fd) < old:
                    remove_tree(fd, name, after(REMOVAL_S))
        with opened_dir(FILES, shelf) as fd:
            for name in os.listdir(fd):
                if (status := _status(fd, name)) and status.st_nlink == 1 and status.st_mtime < old:
                    os.unlink(name, dir_fd=fd)
        with opened_dir(ASKED, shelf) as fd:
            for name in os.listdir(fd):
                if written(name, fd) < old:
                    unlink_if_there(name, fd)


def _remove(shelf: int, item: Set) -> int:
    """Remove a set, and the copies that are of no other one; return how many bytes those have."""
    freed, aside = 0, f"{item.name}{GONE}"
    with opened_dir(SETS, shelf) as fd:
        os.rename(item.name, aside, src_dir_fd=fd, dst_dir_fd=fd)
        remove_tree(fd, aside, after(REMOVAL_S))
    with opened_dir(ABOUTS, shelf) as fd:
        unlink_if_there(f"{item.name}.json", fd)
    with opened_dir(FILES, shelf) as fd:
        for key in {*item.about.files}:
            if (status := _status(fd, key)) and status.st_nlink == 1:
                os.unlink(key, dir_fd=fd)
                freed += _taken(key, status)
    return freed


def _taken(name: str, status: os.stat_result) -> int:
    """Return the bytes of a copy but for its holes; of one that is being made all."""
    return status.st_size if name.endswith(COPYING) else min(status.st_size, status.st_blocks * 512)


def _status(fd: int, name: str) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    return None

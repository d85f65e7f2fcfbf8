"""Runs that wait to be harvested or removed off the clock of their jobs: items of the queue `endings`. Runs as root.

`release` leaves them, `background endings` makes the attempts (`attempts.endings`). What is published is known, so an
attempt begins anew. What waits is bounded in number and age, and while the disk is short of space; a harvest that is
given up is told, and the run removed. A boot ends them all: state is in memory.
"""

from __future__ import annotations

import os
import time

from warmstart.audit import events
from warmstart.ending.removal import AT_ONCE_S, remove
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, try_flock
from warmstart.lean import TYPE_CHECKING, Iterator, NamedTuple, contextmanager
from warmstart.queue import Item, Kind, Queue
from warmstart.run import state
from warmstart.run.state import Caches, Run

if TYPE_CHECKING:
    from warmstart.audit.log import Log
    from warmstart.policy.keys import Policy

ENDINGS = Kind("endings", parallel=2, while_off=True)
LEAST_FREE = 0.1  # fraction of the workspace's blocks and inodes: jobs need the space more than runs that wait
LONGEST_S = 2 * 86400.0  # that a run waits to be harvested
NO_ROOM = "harvest.waiting is used up"
NO_SPACE = "less than a tenth of the workspace's file system is free"
OFF = "warmstart is off"
TOO_OLD = "not finished within two days"


class Waiting(NamedTuple):
    """What an item of the queue says."""

    since: float  # when the run's epilog left it, in seconds since the epoch
    is_done: bool  # whether nothing is left to harvest
    run: str  # its state


def leave(queue: Queue, run: Run, *, is_done: bool) -> Item:
    """Leave a run of which the first attempt begins now, by the caller. Raises `OSError`."""
    now = time.time()
    item = Item(str(run.uid), int(now + ENDINGS.pause_s(1)), 1, run.name)
    put(queue, item, run, now, is_done=is_done)
    return item


def put(queue: Queue, item: Item, run: Run, since: float, *, is_done: bool) -> None:
    """Write down what is left to do of a run. Raises `OSError`."""
    if is_done:  # without what a removal does not need: users choose the names of entries
        run = run._replace(own=Caches(), others=[], environment={}, images={})
    queue.put(item, Waiting(since, is_done, state.encode(run).decode()))


def read(queue: Queue, item: Item) -> tuple[Waiting, Run] | None:
    """Return what waits; None if it is done. Raises `RunUnreadable`."""
    waiting = queue.read(item, Waiting)
    run = state.decode(f"{queue.directory}/{item.name}", waiting.run.encode()) if waiting else None
    return (waiting, run) if waiting and run and run.name == item.key else None


def make_room(policy: Policy, audit: Log, queue: Queue) -> list[WarmstartError]:
    """Give up harvests that wait beyond the policy's number, and more while the disk is short of space.

    Those of the user who has most go first, the oldest of them at first; none that an attempt is at work on. Returns
    the failures: one that cannot be read or removed keeps no other. Raises `OSError` of the queue.
    """
    from warmstart.host.space import Held, fair_order

    failures: list[WarmstartError] = []
    items = sorted(queue.all(), key=lambda item: (item.due, item.key))
    beyond = len(items) - policy.harvest.waiting
    for given_up, number in enumerate(fair_order([Held(item.owner, 1) for item in items])):
        if given_up >= beyond and not is_short_of_space(policy.paths.workspace):
            break
        reason = NO_ROOM if given_up < beyond else NO_SPACE
        try:
            found = read(queue, items[number])
            is_given_up = found and give_up(audit, queue, items[number], found, reason)
            if found and is_given_up and remove(found[1], after(AT_ONCE_S)).is_whole:
                queue.drop(items[number].key)
        except WarmstartError as error:
            failures.append(error)
    return failures


def give_up(audit: Log, queue: Queue, item: Item, found: tuple[Waiting, Run], reason: str) -> bool:
    """Have what waits removed without a harvest, and tell, unless an attempt is at work on it. Raises `OSError`."""
    what, run = found
    with at_work_on(run) as is_ours:
        if is_ours:
            put(queue, item, run, what.since, is_done=True)
            if not what.is_done:
                of_job = audit.for_job(**run.job_labels)
                of_job.emit(events.HARVEST_DROPPED, run=run.name, profiles=run.left, reason=reason)
        return is_ours


@contextmanager
def at_work_on(run: Run) -> Iterator[bool]:
    """Hold the lock of who harvests a run that waits for a `with`; yields False if another process has it.

    A removal ends who holds it.
    """
    place = next(filter(os.path.isdir, (f"{run.workspace}/{run.going}", run.directory)), "")
    if not place:
        yield True
        return
    with opened_dir(place) as fd:
        yield try_flock(fd)


def is_short_of_space(workspace: str) -> bool:
    """Return whether the file system of the workspaces has less than `LEAST_FREE` of its blocks or inodes free."""
    disk = os.statvfs(workspace)
    # statvfs(3) reports 0 inodes where their number is not fixed; then only blocks count.
    return disk.f_bavail < LEAST_FREE * disk.f_blocks or disk.f_favail < LEAST_FREE * disk.f_files

"""Where the nodes of a job meet in the store, and how one of them waits there for the head node. Runs as root.

Hot path of jobs on several nodes.
"""

from __future__ import annotations

import time

from warmstart.errors import StoreError
from warmstart.host.deadline import Deadline, after
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, NamedTuple
from warmstart.record import Record
from warmstart.slurm.nodes import first
from warmstart.store.agreement import Place, Whose
from warmstart.store.client import StoreClient

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

FIRST_PAUSE_S = 0.02
SHORT_PAUSE_S = 0.25  # the longest in the first seconds,
PAUSE_SHARE = 0.05  # then this part of the time waited so far,
LONGEST_PAUSE_S = 5.0  # and never more than this
LOOK_S = 5.0  # for one question to the store


class HeadSilent(StoreError):
    """A node did not learn in time what the head node found, proposed or chose."""

    code = "head-silent"
    template = "the head node {head} has {what} within {seconds} s"
    hint = "check whether its prolog failed or started late (PrologFlags=Alloc), and whether the nodes share the store"


class Meeting(NamedTuple):
    """Where the nodes of one run of a job meet."""

    name: str  # in the store
    nodelist: str  # the job's, or the component's

    def place(self, store: StoreClient, record: Record) -> Place:
        """Return this node's place in it."""
        return Place(store.path, self.name, store.writer, Whose(record.uid, record.cluster, self.nodelist))

    def awaited(self, store: StoreClient, look: Callable[[Deadline], T | None], until: Deadline, what: str) -> T:
        """Look until there is something; return it. Raises `HeadSilent`: it has `what`.

        The client of the store keeps whether the head node was silent last, for what need not wait for it again.
        """
        began = time.monotonic()
        for _ in looks(until):
            if (seen := look(after(LOOK_S))) is not None:
                store.head_silent = False
                return seen
        store.head_silent = True
        raise HeadSilent(head=first(self.nodelist), what=what, seconds=round(time.monotonic() - began))


def looks(until: Deadline) -> Iterator[None]:
    """Yield for each look into the store: at once, then after growing pauses, the last one at the end."""
    pause, began = FIRST_PAUSE_S, time.monotonic()
    yield
    while not until.expired():
        time.sleep(min(pause, until.left()))
        waited = time.monotonic() - began
        pause = min(pause * 1.5, max(SHORT_PAUSE_S, min(waited * PAUSE_SHARE, LONGEST_PAUSE_S)))
        yield

"""One producer at work: what it holds, what it tells its waiters, and what it asks of the store.

Never on a warm hook's path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.images import launchers, progress
from warmstart.images.election import Producer
from warmstart.images.layout import ImageQuery
from warmstart.images.query import Site

CLEAN_UP_S = 5.0
COURTESY = 4  # the part of what is left of the wait that a launcher's lock may cost: one in this many
LONGEST_COURTESY_S = 120.0
POLL_S = 0.25


class Flight(NamedTuple):
    """One producer at work."""

    want: ImageQuery
    site: Site
    deadline: Deadline
    producer: Producer  # what waiters are told
    owner: str  # of its temps in the store
    lockless: str  # why it has no lock, "" if it has one

    def tell(self, doing: str) -> None:
        """Let waiters know; that they can't be told is no failure."""
        with suppress(WarmstartError):
            self.site.store.announce(self.want, self.producer._replace(doing=doing), self.owner, self.deadline)


@contextmanager
def courtesy(flight: Flight) -> Iterator[str]:
    """Hold the launchers' lock where the policy says so, or go on without it; gives why there is none."""
    site = flight.site
    if site.rules.lock != "beside":
        yield ""
        return
    name = launchers.names_of(flight.want.reference)[0]
    until = flight.deadline.within(min(flight.deadline.left() / COURTESY, LONGEST_COURTESY_S))
    problem = site.store.take_launchers_lock(site.rules.names, name, flight.deadline)
    while problem == launchers.BUSY and not until.expired():
        flight.tell("waiting for the launcher that has the lock beside the image")
        time.sleep(min(POLL_S, until.left()))
        problem = site.store.take_launchers_lock(site.rules.names, name, flight.deadline)
    try:
        yield f"somebody holds {name}{launchers.LOCK}" if problem == launchers.BUSY else problem
    finally:
        with suppress(WarmstartError):
            site.store.give_back_launchers_lock(name, after(CLEAN_UP_S))


def teller(flight: Flight) -> Callable[[int], None]:
    """Return what tells waiters of bytes; it has a worker of its own, for it runs in another process."""
    other = flight._replace(site=flight.site._replace(store=flight.site.store.separate()))

    def tell(count: int) -> None:
        other._replace(deadline=after(CLEAN_UP_S)).tell(
            f"fetching and packing it, {progress.format_size(count)} so far"
        )

    return tell

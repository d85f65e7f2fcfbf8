"""One producer at work: what it holds, what it tells its waiters, and what it asks of the store.

Never on a warm hook's path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.worker import Worker
from warmstart.images import beside, election, progress, publishing, space
from warmstart.images.asked import Site, Wanted
from warmstart.store.layout import store_errors

CLEAN_UP_S = 5.0
COURTESY = 4  # the part of what is left of the wait that a launcher's lock may cost: one in this many
LONGEST_COURTESY_S = 120.0
POLL_S = 0.25


class Flight(NamedTuple):
    """One producer at work."""

    want: Wanted
    site: Site
    deadline: Deadline
    producer: dict[str, Any]  # what waiters are told: host, pid, job, since
    lockless: str  # why it has no lock, "" if it has one

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - plain JSON
        """Call a function of the store's with the store and these arguments."""
        return on_store(self.want, self.site, self.deadline, function, *arguments)

    @property
    def owner(self) -> str:
        """Return whose temps in the store these are."""
        return publishing.temp_owner(self.want.lock, self.site.node, self.site.run_id)

    def tell(self, doing: str) -> None:
        """Let waiters know; that they can't be told is no failure."""
        with suppress(WarmstartError):
            self.call(election.announce, self.want.lock, {**self.producer, "doing": doing}, self.owner)


def ask_for_room(flight: Flight, size: int) -> list[str]:
    """Let the store make room for an image of `size` bytes; returns what was evicted for it."""
    site = flight.site
    arguments = (size, site.rules.keep._asdict(), site.charged._asdict(), site.rules.names)
    evicted: list[str] = flight.call(space.make_room, *arguments)
    return evicted


@contextmanager
def courtesy(flight: Flight) -> Iterator[str]:
    """Hold the launchers' lock where the policy says so, or go on without it; gives why there is none."""
    site = flight.site
    if site.rules.lock != "beside":
        yield ""
        return
    name = beside.names_of(flight.want.reference)[0]
    until = flight.deadline.within(min(flight.deadline.left() / COURTESY, LONGEST_COURTESY_S))

    def take() -> str:
        with named(flight.want):
            return str(site.worker.call(beside.take, site.rules.names, name, deadline=flight.deadline))

    problem = take()
    while problem == beside.BUSY and not until.expired():
        flight.tell("waiting for the launcher that has the lock beside the image")
        time.sleep(min(POLL_S, until.left()))
        problem = take()
    try:
        yield f"somebody holds {name}{beside.LOCK}" if problem == beside.BUSY else problem
    finally:
        with suppress(WarmstartError), named(flight.want):
            site.worker.call(beside.give_back, name, deadline=after(CLEAN_UP_S))


def teller(flight: Flight) -> Callable[[int], None]:
    """Return what tells waiters of bytes; it has a worker of its own, for it runs in another process."""
    worker = Worker(flight.site.worker.identity)
    other = flight._replace(site=flight.site._replace(worker=worker))

    def tell(count: int) -> None:
        other._replace(deadline=after(CLEAN_UP_S)).tell(f"fetching and packing it, {progress.size(count)} so far")

    return tell


def afterwards(want: Wanted, site: Site, function: Callable[..., Any], *arguments: object) -> None:
    """Do what only helps others, without hiding what happened before it."""
    try:
        on_store(want, site, after(CLEAN_UP_S), function, *arguments)
    except WarmstartError:
        site.worker.close()  # a lock that could not be given back goes with its process


def on_store(want: Wanted, site: Site, deadline: Deadline, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - plain JSON
    """Call a function of the store's for a reference."""
    with named(want):
        return site.worker.call(function, site.store, *arguments, deadline=deadline)


def named(want: Wanted) -> Any:  # noqa: ANN401 - what contextlib calls a private name
    """Turn an `OSError` into the store's error, with the image's name."""
    return store_errors(f"image {want.reference.canonical()}")

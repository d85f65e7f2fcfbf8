"""The hook's part of a background import: ask for it and wait, but never import. Runs as root. Not on the hot path.

    look up ─▶ failed since we wait? ─▶ is somebody at work, here or on another node? ─▶ no: write a request, start it
       ▲                                                    │ yes                                     │
       └──────────────────── pause ◀────────────────────────┴─────────────────────────────────────────┘

A hook whose time is over ends before the pause, never before it has asked.

Whether somebody is at work is found out before the look-up, and used after it: an import that has ended by then has
left its image or its failure where the look-up finds it.

A failure counts if it is new: the last one is read once at the start, and another one ends the wait. So no clocks of
different nodes are compared, and a job that comes after a failure tries again. Definitive failures count for a while.
"""

from __future__ import annotations

import random
import time

from warmstart.errors import WarmstartError, by_code
from warmstart.host.deadline import Deadline
from warmstart.images.importers.base import ImportFailed
from warmstart.images.imports import making, requests
from warmstart.images.imports.requests import ImportRequest
from warmstart.images.query import Obtained, Queue, Site
from warmstart.images.store import published
from warmstart.images.store.layout import ImageQuery
from warmstart.images.store.published import RememberedFailure
from warmstart.record import using_state

PROBE_S = 1.0  # the least between two questions whether somebody is at work; jitter makes each up to half longer
LOCAL_MODULES = ("warmstart.images.store.eviction", "warmstart.images.credentials")  # of further errors of an import
WAITS = "its import waits on node {node} for one of the {parallel} that run there at a time (images.parallel)"
STARTS = "its import on node {node} is starting"


class Wait:
    """One hook's wait for one image."""

    def __init__(self, query: ImageQuery, site: Site, queue: Queue) -> None:
        self._query = query
        self._site = site
        self._queue = queue
        self._request = ImportRequest.of(query, site, queue.private)
        self._problem = ""  # why no import could be asked for
        self._seen: set[float] | None = None  # times of the failures that were there when the wait began
        self._probed = 0.0

    def until(self, last_look: Deadline, deadline: Deadline) -> Obtained | str:
        """Return the image; after the last look, a clause that says who imports it and how far that is.

        Raises what the import failed with, and `StateFull` or `StateUnusable` if requests cannot be read or written.
        """
        pauses = making.pauses(last_look)
        while True:
            is_idle = self._is_time_to_probe() and not self._is_at_work(deadline)
            if image := self._site.look_up(self._query, "waited", deadline):
                return image
            self._raise_new_failure(deadline)
            if is_idle:  # even a hook that has no time to wait asks: its image is there for the next job
                self._ask()
            if last_look.expired():
                return self._describe()
            next(pauses)

    def _is_time_to_probe(self) -> bool:
        now = time.monotonic()
        if now < self._probed:
            return False
        # S311: jitter between the waiters of many nodes; no secret
        self._probed = now + PROBE_S * (1 + random.random() / 2)  # noqa: S311
        return True

    def _is_at_work(self, deadline: Deadline) -> bool:
        with using_state(self._queue.directory):
            if requests.is_live(self._queue.directory, self._request.key):
                return True
        return self._site.store.is_at_work(self._query, deadline)

    def _ask(self) -> None:
        with using_state(self._queue.directory):
            self._problem = requests.submit(self._queue, self._request)
            requests.start_due(self._queue)

    def _raise_new_failure(self, deadline: Deadline) -> None:
        """Raise the failure of an import that ended after this wait began, or that is definitive."""
        here = requests.last_failure(self._queue.directory, self._request.key)
        shared = self._site.store.last_failure(self._query, deadline)
        found = [failure for failure in (here, shared) if failure is not None]
        if self._seen is None:
            self._seen = {failure.at for failure in found}
        for failure in found:
            is_new = failure.at not in self._seen and failure.uid in (-1, self._site.charged.uid)
            if is_new or published.is_definitive(failure, self._site.rules.remember_failures):
                raise self._error(failure, is_local=failure is here)

    def _error(self, failure: RememberedFailure, *, is_local: bool) -> WarmstartError:
        for module in LOCAL_MODULES:
            __import__(module)
        kind = by_code(failure.code)
        if is_local and kind is not None:  # root's own word: it may say that this node is broken
            return kind(**failure.fields)
        problem = failure.text or failure.code
        unknown = ImportFailed(image=self._request.reference, program="the import", problem=problem)
        return published.as_error(failure) or unknown

    def _describe(self) -> str:
        if known := making.describe_producer(self._query, self._site):
            return known
        if self._problem:
            return self._problem
        directory, key = self._queue.directory, self._request.key
        with using_state(directory):
            request = requests.read(directory, key)
            is_started = requests.is_live(directory, key) or (request is not None and request.is_starting())
        text = STARTS if is_started else WAITS
        return text.format(node=self._request.node, parallel=self._queue.parallel)

"""Waiting for an image that is missing: a hook asks for its import and waits, but never imports. Runs as root.

    look up ─▶ failed since we wait? ─▶ is somebody at work, here or on another node? ─▶ no: write a request, start it
       ▲                                                    │ yes                                     │
       └──────────────────── pause ◀────────────────────────┴─────────────────────────────────────────┘

A hook whose time is over ends before the pause, never before it has asked.

Whether somebody is at work is found out before the look-up, and used after it: an import that has ended by then has
left its image or its failure where the look-up finds it.

A failure counts if it is new: the last one is read once at the start, and another one ends the wait. So no clocks of
different nodes are compared, and a job that comes after a failure tries again. Definitive failures count for a while.

A failure that leaves open what a tag means now is no reason to fail a job: it gets the image that the tag meant last,
if that is in the store (`last_image`). Nor is it a reason to ask again soon: such a failure counts for a while, too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress

from warmstart.errors import StoreError, UserError, WarmstartError, by_code
from warmstart.host import deadline as deadlines
from warmstart.host.deadline import Deadline, after
from warmstart.images.importers.base import ImportFailed
from warmstart.images.imports import requests
from warmstart.images.imports.job_end import JobOver
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.images.query import Obtained, Site
from warmstart.images.store import published
from warmstart.images.store.layout import ImageQuery
from warmstart.images.store.published import RememberedFailure
from warmstart.policy.units import format_duration, format_size
from warmstart.queue import Queue, is_at_work
from warmstart.run.state import using_state

ANSWER_S = 1.0  # reserved for the last look into the store
PROBE_S = 1.0  # the least between two questions whether somebody is at work; jitter makes each up to half longer
PRODUCER_S = 5.0  # for a question about the producer
LAST_IMAGE_S = 5.0  # the least for looking up what a tag meant last, also after the deadline
NEW_DIGEST = "new_digest"  # the field of an error that says what the tag means now
LOCAL_MODULES = ("warmstart.images.store.eviction", "warmstart.images.credentials")  # of further errors of an import
WAITS = "its import waits on node {node}, where {parallel} run at a time"
STARTS = "its import on node {node} is starting"


class ImageWaitExpired(StoreError):
    """The image is still being imported at the deadline."""

    code = "image-wait-expired"
    template = "image {image} is still missing after {waited_s} s of waiting; {producer}"
    hint = "the import goes on: submit the job again when it is done; for very large images raise images.wait"


def looks(until: Deadline) -> Iterator[None]:
    """Yield for each look into the store, the first at once and the last a second before `until`."""
    return deadlines.looks(Deadline(until.at - ANSWER_S))


class Wait:
    """One hook's wait for one image."""

    def __init__(self, query: ImageQuery, site: Site) -> None:
        self._query = query
        self._site = site
        self._paths = site.paths
        self._request = ImportRequest.of(query, site)
        self._has_asked = False
        self._problem = ""  # why no import could be asked for
        self._seen: set[float] | None = None  # times of the failures that were there when the wait began
        self._probed = 0.0
        self._is_job_over = site.job_end()

    def until(self, deadline: Deadline) -> Obtained:
        """Return the image, or the one that the tag meant last.

        Raises `ImageWaitExpired`, `JobOver`, what the import failed with, and `StateFull` or `FileSystemBroken` if
        requests cannot be read or written.
        """
        try:
            return self._until(deadline)
        except WarmstartError as error:
            image = last_image(self._query, self._site, error, deadline)
            if image is None:
                raise
            return image

    def _until(self, deadline: Deadline) -> Obtained:
        started = time.monotonic()
        for _ in looks(deadline):
            is_idle = self._is_time_to_probe() and not self._is_at_work(deadline)
            if image := self._site.look_up(self._query, "waited", deadline):
                return image._replace(waited_s=round(time.monotonic() - started, 3))
            self._raise_failure(deadline)
            if self._is_job_over(deadline):
                raise JobOver(image=self._request.reference)
            if is_idle:  # even a hook that has no time to wait asks: its image is there for the next job
                self._ask()
        raise self._expired(round(time.monotonic() - started))

    def _is_time_to_probe(self) -> bool:
        now = time.monotonic()
        if now < self._probed:
            return False
        # S311: jitter between the waiters of many nodes; no secret
        self._probed = now + PROBE_S * (1 + random.random() / 2)  # noqa: S311
        return True

    def _is_at_work(self, deadline: Deadline) -> bool:
        with using_state(self._paths.queue):
            item = Queue(self._paths, IMPORTS).find(self._request.key)
            if self._has_asked and item is not None and is_at_work(self._paths, IMPORTS.name):
                return True
        return self._site.store.run(deadline, published.is_at_work, self._query.lock)

    def _ask(self) -> None:
        with using_state(self._paths.queue):
            self._problem = requests.submit(self._paths, self._request)
            Queue(self._paths, IMPORTS).start_due()
        self._has_asked = True

    def _raise_failure(self, deadline: Deadline) -> None:
        """Raise the failure of an import that ended after this wait began, or a recent one that ends each wait."""
        here = requests.last_failure(self._paths, self._request.image)
        shared = self._site.store.run(deadline, published.last_failure, self._query.lock)
        failures = [failure for failure in (here, shared) if failure is not None]
        is_first = self._seen is None
        if self._seen is None:
            self._seen = {failure.at for failure in failures}
        for failure in failures:
            error = self._error(failure, is_local=failure is here)
            is_new = failure.at not in self._seen and failure.uid in (-1, self._site.charged.uid)
            if is_new or published.is_definitive(failure):
                raise error
            if (
                is_first
                and published.is_recent(failure)
                and last_image(self._query, self._site, error, deadline) is not None
            ):
                raise error

    def _error(self, failure: RememberedFailure, *, is_local: bool) -> WarmstartError:
        told = as_error(failure)
        kind = by_code(failure.code)
        if is_local and kind is not None:  # root's own word: it may say that this node is broken
            return kind(**failure.fields)
        problem = failure.text or failure.code
        unknown = ImportFailed(image=self._request.reference, program="the import", problem=problem)
        unknown.fields.update({name: text for name, text in failure.fields.items() if name == NEW_DIGEST})
        return told or unknown

    def _expired(self, waited_s: int) -> ImageWaitExpired:
        error = ImageWaitExpired(image=self._request.reference, waited_s=waited_s, producer=self._describe())
        with suppress(WarmstartError):  # this error is the more useful one
            producer = self._site.store.run(after(PRODUCER_S), published.producer_of, self._query.lock)
            if producer is not None and producer.digest:
                name_images(error, self._query, known(self._query, self._site, after(LAST_IMAGE_S)), producer.digest)
        return error

    def _describe(self) -> str:
        if known := describe_producer(self._query, self._site):
            return known
        if self._problem:
            return self._problem
        with using_state(self._paths.queue):
            item = Queue(self._paths, IMPORTS).find(self._request.key)
        text = STARTS if item is not None and item.attempts else WAITS
        return text.format(node=self._site.requester.node, parallel=IMPORTS.parallel)


def as_error(failure: RememberedFailure) -> WarmstartError | None:
    """Return the error of an import as `published.as_error` does, of all that an import or a wait can raise."""
    for module in LOCAL_MODULES:
        __import__(module)
    return published.as_error(failure)


def last_image(query: ImageQuery, site: Site, error: WarmstartError, deadline: Deadline) -> Obtained | None:
    """Return the image that a tag meant last, if that is in the store and `error` is no reason against it.

    It is one if the registry has no such tag or forbids it, if the policy refuses the image, or if the tag means
    another image now: the last one would silently be the wrong code.
    """
    if NEW_DIGEST in error.fields or isinstance(error, UserError):
        return None
    until = deadline if deadline.left() > LAST_IMAGE_S else after(LAST_IMAGE_S)
    with suppress(WarmstartError):  # the caller's error is the more useful one
        image = known(query, site, until)
        return image._replace(how="stale", reason=f"{image.reason}; {error}") if image is not None else None
    return None


def known(query: ImageQuery, site: Site, deadline: Deadline) -> Obtained | None:
    """Return the image that a tag meant when its registry last said so, however long ago; None if the store lacks it.

    Its `reason` has how long ago. Raises what `ImageStoreClient` raises.
    """
    pointer = None if query.reference.digest else site.store.run(deadline, published.last_pointer, query.key)
    image = site.look_up(query, "reused", deadline, pointer.digest) if pointer is not None else None
    if image is None or pointer is None:
        return None
    age = round(max(time.time() - pointer.resolved, 0.0))
    return image._replace(reason=f"its registry said so {format_duration(age)} ago")


def name_images(error: WarmstartError, query: ImageQuery, old: Obtained | None, new: str) -> None:
    """Have the error of an import name the image as the job does, and not by the digest `new` that was imported.

    If the tag had another meaning, add what it means now, and how to get the image that it meant.
    """
    if "image" in error.fields:
        error.fields["image"] = query.reference.canonical()
    if old is not None:
        before = query.reference.at(old.digest)
        error.fields[NEW_DIGEST] = new
        error.fields["also"] = f"; the tag means {new} now, and {before}, which it meant before, is in the store"


def describe_producer(query: ImageQuery, site: Site) -> str:
    """Return a clause that says which process imports the image, and how far it is; "" if none is known to live."""
    producer = None
    with suppress(WarmstartError):  # the waiter's own error is more useful than this one
        if site.store.run(after(PRODUCER_S), published.is_at_work, query.lock):
            producer = site.store.run(after(PRODUCER_S), published.producer_of, query.lock)
    if producer is None:
        return ""
    done = f", {format_size(producer.done)} so far" if producer.done else ""
    now = f", now {producer.phase}{done}" if producer.phase else ""
    who = f"pid {producer.pid} on {producer.host} for job {producer.job}"
    return f"imported by {who} since {producer.since}{now}"

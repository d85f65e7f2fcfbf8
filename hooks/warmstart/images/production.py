"""The producer's part of a single flight: everything between the lock and the published image.

Never on a warm hook's path. The lock's holder looks again, because the one before it may have just published; a
definitive failure is written down before the lock goes, so that the next holder finds it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from warmstart.errors import UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.worker import Worker
from warmstart.images import election, failures, possession, publishing, scratch, validity
from warmstart.images.asked import Obtained, Site, Wanted, find, obtained
from warmstart.images.importers.contract import Importer
from warmstart.images.lookup import image_name
from warmstart.images.superblock import ImageInvalid
from warmstart.store.layout import store_errors

CLEAN_UP_S = 5.0


class Import(NamedTuple):
    """One run of an importer."""

    importer: Importer
    digest: str
    work: scratch.Scratch


def begin(want: Wanted, site: Site, deadline: Deadline) -> bool:
    """Become the producer, if nobody is."""
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    producer = {"host": site.node, "pid": os.getpid(), "job": site.job_id, "since": since}
    return bool(_on_store(want, site, deadline, election.begin, want.lock, producer, _owner(want, site)))


def produce(want: Wanted, site: Site, deadline: Deadline, how: str) -> Obtained:
    """Import and publish, unless that has been done in the meantime (then `how`); gives the lock back."""
    try:
        raise_remembered(want, site, deadline)
        found = find(want, site, deadline)
        return obtained(found, how) or _import(want, site, deadline)
    except UserError as error:
        _remember(want, site, error)
        raise
    finally:
        _afterwards(want, site, election.end, want.lock)


def raise_remembered(want: Wanted, site: Site, deadline: Deadline) -> None:
    """Raise the definitive failure that somebody met with this reference a short time ago."""
    failure = _on_store(want, site, deadline, failures.recall, want.lock)
    if failure and (error := failures.as_error(failure)):
        raise error


def describe_producer(want: Wanted, site: Site) -> str:
    """Return whom a waiter has waited for, in words."""
    try:
        producer = _on_store(want, site, after(CLEAN_UP_S), election.producer_of, want.lock)
    except WarmstartError:
        producer = {}  # the waiter's own error says more than this one would
    if not producer:
        return "its producer did not say who it is"
    words = {key: str(producer.get(key, "?"))[:80] for key in ("host", "pid", "job", "since")}
    return "imported by pid {pid} on {host} for job {job} since {since}".format_map(words)


def _import(want: Wanted, site: Site, deadline: Deadline) -> Obtained:
    _on_store(want, site, deadline, publishing.sweep, want.lock)
    importer = site.importer()
    with scratch.opened(site.workspace, site.node, site.run_id, importer.identity) as work:
        resolved = time.time()
        digest = want.reference.digest or importer.resolve(want.reference, work, deadline)
        found = find(want, site, deadline, digest)
        image = obtained(found, "reused")  # under another tag, or the tag has not moved
        if image is None:
            if found:
                name = image_name(digest, want.machine)
                _on_store(want, site, deadline, publishing.quarantine, name)
            _make(want, site, deadline, Import(importer, digest, work))
            image = obtained(find(want, site, deadline, digest), "imported")
    if image is None:  # somebody took it out of the store between two lines of this function
        raise ImageInvalid(problem="it was published and is gone")
    if want.reference.tag:
        _on_store(want, site, deadline, publishing.point, want.key, digest, resolved, _owner(want, site))
    return image._replace(quarantined=found.get("invalid", ""))


def _make(want: Wanted, site: Site, deadline: Deadline, order: Import) -> None:
    """Import, take the result, prove it, and let the store's owner copy that same inode."""
    importer, digest, work = order
    result = importer.import_image(want.reference, digest, work, deadline)
    with scratch.disk_errors(work.path):
        fd = possession.take(work.fd, result, importer.identity.uid)
    try:
        validity.check_listing(fd, site.validator, deadline)
        meta = {
            "digest": digest,
            "reference": want.reference.canonical(),
            "machine": want.machine,
            "importer": importer.name,
            "published": time.time(),
            "node": site.node,
            "job_id": site.job_id,
        }
        # A worker of its own: the other one was forked before this descriptor was there.
        with Worker(site.worker.identity, keep=[fd]) as publisher, _named(want):
            arguments = (site.store, fd, image_name(digest, want.machine), _owner(want, site), meta)
            publisher.call(publishing.publish_image, *arguments, deadline=deadline)
    finally:
        os.close(fd)


def _remember(want: Wanted, site: Site, error: WarmstartError) -> None:
    fields = {name: str(value) for name, value in error.fields.items()}
    _afterwards(want, site, failures.remember, want.lock, error.code, fields, _owner(want, site))


def _afterwards(want: Wanted, site: Site, function: Callable[..., Any], *arguments: object) -> None:
    """Do what only helps others, without hiding what happened before it."""
    try:
        _on_store(want, site, after(CLEAN_UP_S), function, *arguments)
    except WarmstartError:
        site.worker.close()  # a lock that could not be given back goes with its process


def _on_store(want: Wanted, site: Site, deadline: Deadline, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - plain JSON
    with _named(want):
        return site.worker.call(function, site.store, *arguments, deadline=deadline)


def _named(want: Wanted) -> Any:  # noqa: ANN401 - what contextlib calls a private name
    return store_errors(f"image {want.reference.canonical()}")


def _owner(want: Wanted, site: Site) -> str:
    return publishing.temp_owner(want.lock, site.node, site.run_id)

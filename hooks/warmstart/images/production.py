"""The producer's part of a single flight: everything between the lock and the published image.

Never on a warm hook's path. The lock's holder looks again, because the one before it may have just published; a
definitive failure is written down before the lock goes, so that the next holder finds it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from warmstart.errors import UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.worker import Worker
from warmstart.images import beside, election, failures, possession, progress, publishing, scratch, validity
from warmstart.images.adoption import fetch
from warmstart.images.asked import Missing, Obtained, Site, Wanted, find, obtained, wanted
from warmstart.images.importers.contract import Importer, RegistryUnreachable
from warmstart.images.lookup import ADOPTED, image_name, is_adopted
from warmstart.images.producer import (
    CLEAN_UP_S,
    Flight,
    afterwards,
    ask_for_room,
    courtesy,
    named,
    on_store,
    teller,
)
from warmstart.images.reference import Reference
from warmstart.images.sized import Caps
from warmstart.images.superblock import ImageInvalid

RESOLVE_KNOWN_S = 20.0  # for a registry's answer on a tag whose last digest is in the store
ADOPTED_FILE = "adopted.sqsh"


class NothingToAdopt(UserError):
    """No other launcher's image can be taken over for a reference."""

    code = "nothing-to-adopt"
    template = "image {image} is not adopted: {problem}"
    hint = "images.adopt in the policy names directories and owners (docs/images.md, Adoption)"


def begin(want: Wanted, site: Site, deadline: Deadline) -> Flight | None:
    """Become the producer, if nobody is."""
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    producer = {"host": site.node, "pid": os.getpid(), "job": site.job_id, "since": since}
    flight = Flight(want, site, deadline, producer, "")
    begun = flight.call(election.begin, want.lock, producer, flight.owner)
    return None if begun is None else flight._replace(lockless=begun["lockless"])


def produce(flight: Flight, how: str) -> Obtained:
    """Import and publish, unless that has been done in the meantime (then `how`); gives the lock back."""
    want, site, deadline = flight[:3]
    try:
        raise_remembered(want, site, deadline)
        image = obtained(find(want, site, deadline), how) or _import(flight)
        return image._replace(missing=image.missing._replace(lockless=image.missing.lockless or flight.lockless))
    except UserError as error:
        if error.code in failures.DEFINITIVE:
            fields = {name: str(value) for name, value in error.fields.items()}
            afterwards(want, site, failures.remember, want.lock, error.code, fields, flight.owner)
        raise
    finally:
        afterwards(want, site, election.end, want.lock)


def raise_remembered(want: Wanted, site: Site, deadline: Deadline) -> None:
    """Raise the definitive failure that somebody met with this reference a short time ago."""
    failure = on_store(want, site, deadline, failures.recall, want.lock, site.rules.remember_failures)
    if failure and (error := failures.as_error(failure)):
        raise error


def describe_producer(want: Wanted, site: Site) -> str:
    """Return whom a waiter has waited for, and what that one does, in words."""
    try:
        producer = on_store(want, site, after(CLEAN_UP_S), election.producer_of, want.lock)
    except WarmstartError:
        producer = {}  # the waiter's own error says more than this one would
    if not producer:
        return "its producer did not say who it is"
    words = {key: str(producer.get(key, "?"))[:80] for key in ("host", "pid", "job", "since")}
    doing = f", now {str(producer['doing'])[:80]}" if "doing" in producer else ""
    return "imported by pid {pid} on {host} for job {job} since {since}".format_map(words) + doing


def discard_damaged(image: Obtained, want: Wanted, site: Site, deadline: Deadline) -> str:
    """Read every byte of an image, unless that has been done; returns what is wrong with it, and moves it aside."""
    name = image_name(image.digest, want.kind)
    owner = publishing.temp_owner(want.lock, site.node, site.run_id)
    found = on_store(want, site, deadline, validity.check_bytes, name, owner)
    if found["problem"]:
        on_store(want, site, deadline, publishing.quarantine, name, found["problem"], found["inode"])
    return str(found["problem"])


def adopt_now(reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    """Take over what another launcher left for a tag, however old it is; `NothingToAdopt` says why not."""
    want = wanted(reference, site)
    flight = begin(want._replace(times=[0.0, 0.0]), site, deadline)
    if flight is None:
        raise NothingToAdopt(image=reference.canonical(), problem=describe_producer(want, site))
    try:
        with scratch.opened(site.workspace, site.node, site.run_id, site.worker.identity, _caps(site)) as work:
            image, left_out = _adopt(flight, work)
    finally:
        afterwards(want, site, election.end, want.lock)
    if image is None:
        problem = left_out or "the policy names no directory that has it, or its name could mean another image, too"
        raise NothingToAdopt(image=reference.canonical(), problem=problem)
    on_store(want, site, deadline, publishing.point, want.key, image.digest, time.time(), flight.owner)
    return image


def _caps(site: Site) -> Caps:
    return Caps(site.rules.max_size, site.rules.max_files)


def _import(flight: Flight) -> Obtained:
    want, site = flight.want, flight.site
    flight.call(publishing.sweep, want.lock)
    importer = site.importer()
    with (
        courtesy(flight) as lockless,
        scratch.opened(site.workspace, site.node, site.run_id, importer.identity, _caps(site)) as work,
    ):
        image, left_out = _adopt(flight, work)
        image = image or _fetch(flight, importer, work)
    return image._replace(missing=image.missing._replace(lockless=lockless, left_out=left_out))


def _fetch(flight: Flight, importer: Importer, work: scratch.Scratch) -> Obtained:
    want, site, deadline = flight[:3]
    resolved = time.time()
    digest = want.reference.digest
    if not digest:
        known = flight.call(publishing.last_pointer, want.key)
        flight.tell("asking the registry what the tag means")
        try:
            patience = deadline.within(RESOLVE_KNOWN_S) if known else deadline
            digest = importer.resolve(want.reference, work, patience)
        except RegistryUnreachable:
            stale = _stale(flight, known)
            if stale is None:
                raise
            return stale
    found = find(want, site, deadline, digest)
    image = obtained(found, "reused")  # under another tag, or the tag has not moved
    missing = Missing()
    if image is None:
        quarantined = found.get("invalid", "")
        if found:
            flight.call(publishing.quarantine, image_name(digest, want.kind), quarantined)
        evicted = _make(flight, digest, importer, work)
        image = obtained(find(want, site, deadline, digest), "imported")
        missing = Missing(quarantined=quarantined, evicted=tuple(evicted))
    if image is None:  # somebody took it out of the store between two lines of this function
        raise ImageInvalid(problem="it was published and is gone")
    _point(flight, digest, resolved)
    return image._replace(missing=missing)


def _stale(flight: Flight, known: dict[str, Any]) -> Obtained | None:
    """Return the image that the tag last meant, and let others have it without asking for a while."""
    if not known:
        return None
    image = obtained(find(flight.want, flight.site, flight.deadline, known["digest"]), "stale")
    if image is not None:
        flight.call(publishing.point_unanswered, flight.want.key, flight.owner)
    return image


def _make(flight: Flight, digest: str, importer: Importer, work: scratch.Scratch) -> list[str]:
    """Import, take the result, and publish it; returns what was evicted for it."""
    want, deadline = flight.want, flight.deadline
    evicted = ask_for_room(flight, 0)  # before minutes of work, not after them
    flight.tell("fetching and packing it")
    with progress.told(work.fd, teller(flight)):
        result = importer.import_image(want.reference, digest, work, deadline)
    work.settle()
    with work.errors():
        fd = possession.take(work.fd, result, importer.identity.uid)
    try:
        return [*evicted, *_publish(flight, fd, digest, importer.name)]
    finally:
        os.close(fd)


def _adopt(flight: Flight, work: scratch.Scratch) -> tuple[Obtained | None, str]:
    """Take over what another launcher left, if the policy says from where; or say why what is there is not taken."""
    want, site, deadline = flight[:3]
    places = [[item.directory, list(item.owners)] for item in site.rules.adopt]
    if want.reference.digest or not places or not beside.is_unambiguous(want.reference):
        return None, ""
    with work.errors():
        fd = os.open(ADOPTED_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=work.fd)
    try:
        arguments = (fd, places, beside.names_of(want.reference), want.times[0])
        with Worker(site.worker.identity, keep=[fd]) as reader, named(want):
            taken = reader.call(fetch, *arguments, deadline=deadline)
        if "sha256" not in taken:
            return None, str(taken.get("problem", ""))
        digest = ADOPTED + taken["sha256"]
        evicted = _publish(flight, fd, digest, f"adopted from {taken['path']}")
    except ImageInvalid as error:  # a launcher's half image: the import follows, as without it
        return None, f"{taken['path']}: {error}"
    finally:
        os.close(fd)
        with work.errors():
            os.unlink(ADOPTED_FILE, dir_fd=work.fd)
    _point(flight, digest, min(taken["changed"], time.time()))
    image = obtained(find(want, site, deadline, digest), "adopted")
    return image and image._replace(missing=Missing(evicted=tuple(evicted))), ""


def _publish(flight: Flight, fd: int, digest: str, importer: str) -> list[str]:
    """Prove an inode that only root can write, and let the store's owner copy it; returns what was evicted for it."""
    want, site, deadline = flight[:3]
    size = os.fstat(fd).st_size
    flight.tell(f"checking {progress.size(size)}")
    validity.check_listing(fd, site.validator, deadline)
    evicted = ask_for_room(flight, size)
    flight.tell(f"publishing {progress.size(size)}")
    meta = {
        "digest": digest,
        "reference": want.reference.canonical(),
        "kind": want.kind,
        "importer": importer,
        "published": time.time(),
        "node": site.node,
        "job_id": site.job_id,
        **site.charged._asdict(),
    }
    # A worker of its own: the other one was forked before this descriptor was there.
    with Worker(site.worker.identity, keep=[fd]) as publisher, named(want):
        arguments = (site.store, fd, image_name(digest, want.kind), flight.owner, meta)
        publisher.call(publishing.publish_image, *arguments, deadline=deadline)
    return evicted


def _point(flight: Flight, digest: str, resolved: float) -> None:
    """Let the tag, and the names that launchers look for, lead to the image."""
    want, site = flight.want, flight.site
    if want.reference.tag:
        flight.call(publishing.point, want.key, digest, resolved, flight.owner)
    # What one user asked for gets no name: `a_b` and `a/b` are the same file to launchers.
    if site.rules.names and site.charged.uid == -1 and not is_adopted(digest):
        path = os.path.join(site.store, "images", image_name(digest, want.kind) + beside.IMAGE)
        arguments = (site.rules.names, beside.names_of(want.reference), path)
        with suppress(WarmstartError), named(want):
            site.worker.call(beside.link, *arguments, deadline=flight.deadline)

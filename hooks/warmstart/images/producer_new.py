"""The producer's part of a single flight: everything between the lock and the published image.

Never on a warm hook's path. The lock's holder looks again, because the one before it may have just published; a
definitive failure is written down before the lock goes, so that the next holder finds it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from warmstart.errors import UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.images import failures, launchers, possession, progress, scratch, verify
from warmstart.images.election import Producer
from warmstart.images.failures import RememberedFailure
from warmstart.images.importers.base import Importer, RegistryUnreachable
from warmstart.images.layout import ADOPTED, ImageQuery, Pointer, TagTimes, image_name, is_adopted
from warmstart.images.producer import CLEAN_UP_S, Flight, courtesy, teller
from warmstart.images.published import Draft, temp_owner
from warmstart.images.query import Missing, Obtained, Site, as_obtained, query_by_rules
from warmstart.images.reference import Reference
from warmstart.images.sized import Caps
from warmstart.images.squashfs import ImageInvalid

RESOLVE_KNOWN_S = 20.0  # for a registry's answer on a tag whose last digest is in the store
ADOPTED_FILE = "adopted.sqsh"


class NothingToAdopt(UserError):
    """No other launcher's image can be taken over for a reference."""

    code = "nothing-to-adopt"
    template = "image {image} is not adopted: {problem}"
    hint = "images.adopt in the policy names directories and owners (docs/images.md, Adoption)"


def begin(want: ImageQuery, site: Site, deadline: Deadline) -> Flight | None:
    """Become the producer, if nobody is."""
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    producer = Producer(site.node, os.getpid(), site.job_id, since)
    owner = temp_owner(want.lock, site.node, site.run_id)
    lockless = site.store.begin(want, producer, owner, deadline)
    return None if lockless is None else Flight(want, site, deadline, producer, owner, lockless)


def produce(flight: Flight, how: str) -> Obtained:
    """Import and publish, unless that has been done in the meantime (then `how`); gives the lock back."""
    want, site, deadline = flight[:3]
    try:
        raise_remembered(want, site, deadline)
        image = as_obtained(site.store.find(want, deadline), how) or _import(flight)
        return image._replace(missing=image.missing._replace(lockless=image.missing.lockless or flight.lockless))
    except UserError as error:
        if error.code in failures.DEFINITIVE:
            failure = RememberedFailure(error.code, {name: str(value) for name, value in error.fields.items()})
            with suppress(WarmstartError):
                site.store.remember(want, failure, flight.owner, after(CLEAN_UP_S))
        raise
    finally:
        site.store.end(want, after(CLEAN_UP_S))


def raise_remembered(want: ImageQuery, site: Site, deadline: Deadline) -> None:
    """Raise the definitive failure that somebody met with this reference a short time ago."""
    failure = site.store.recall(want, site.rules.remember_failures, deadline)
    if failure and (error := failures.as_error(failure)):
        raise error


def describe_producer(want: ImageQuery, site: Site) -> str:
    """Return whom a waiter has waited for, and what that one does, in words."""
    try:
        producer = site.store.producer_of(want, after(CLEAN_UP_S))
    except WarmstartError:
        producer = None  # the waiter's own error says more than this one would
    if producer is None:
        return "its producer did not say who it is"
    doing = f", now {producer.doing}" if producer.doing else ""
    return f"imported by pid {producer.pid} on {producer.host} for job {producer.job} since {producer.since}{doing}"


def discard_damaged(image: Obtained, want: ImageQuery, site: Site, deadline: Deadline) -> str:
    """Read every byte of an image, unless that has been done; returns what is wrong with it, and quarantines it."""
    name = image_name(image.digest, want.kind)
    found = site.store.check_bytes(name, temp_owner(want.lock, site.node, site.run_id), deadline)
    if found.problem:
        site.store.quarantine(name, found.problem, deadline, inode=found.inode)
    return found.problem


def adopt_now(reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    """Take over what another launcher left for a tag, however old it is; `NothingToAdopt` says why not."""
    want, site = query_by_rules(reference, site.rules, site.recipe), site.about(reference)
    flight = begin(want._replace(times=TagTimes(0.0, 0.0)), site, deadline)
    if flight is None:
        raise NothingToAdopt(image=reference.canonical(), problem=describe_producer(want, site))
    try:
        with scratch.opened(site.workspace, site.node, site.run_id, site.store.identity, _caps(site)) as work:
            image, left_out = _adopt(flight, work)
    finally:
        site.store.end(want, after(CLEAN_UP_S))
    if image is None:
        problem = left_out or "the policy names no directory that has it, or its name could mean another image, too"
        raise NothingToAdopt(image=reference.canonical(), problem=problem)
    site.store.point(want, image.digest, time.time(), flight.owner, deadline)
    return image


def _caps(site: Site) -> Caps:
    return Caps(site.rules.max_size, site.rules.max_files)


def _import(flight: Flight) -> Obtained:
    want, site = flight.want, flight.site
    site.store.sweep(want, flight.deadline)
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
        known = site.store.last_pointer(want, deadline)
        flight.tell("asking the registry what the tag means")
        try:
            patience = deadline.within(RESOLVE_KNOWN_S) if known is not None else deadline
            digest = importer.resolve(want.reference, work, patience)
        except RegistryUnreachable:
            stale = _stale(flight, known)
            if stale is None:
                raise
            return stale
    found = site.store.find(want, deadline, digest)
    image = as_obtained(found, "reused")  # under another tag, or the tag has not moved
    missing = Missing()
    if image is None:
        if found is not None:
            site.store.quarantine(image_name(digest, want.kind), found.invalid, deadline)
        evicted = _make(flight, digest, importer, work)
        missing = Missing(quarantined=found.invalid if found else "", evicted=tuple(evicted))
        image = as_obtained(site.store.find(want, deadline, digest), "imported")
    if image is None:  # somebody took it out of the store between two lines of this function
        raise ImageInvalid(problem="it was published and is gone")
    _point(flight, digest, resolved)
    return image._replace(missing=missing)


def _stale(flight: Flight, known: Pointer | None) -> Obtained | None:
    """Return the image that the tag last meant, and let others have it without asking for a while."""
    if known is None:
        return None
    want, site, deadline = flight[:3]
    image = as_obtained(site.store.find(want, deadline, known.digest), "stale")
    if image is not None:
        site.store.point_unanswered(want, flight.owner, deadline)
    return image


def _make(flight: Flight, digest: str, importer: Importer, work: scratch.Scratch) -> list[str]:
    """Import, take the result, and publish it; returns what was evicted for it."""
    want, site, deadline = flight[:3]
    evicted = site.store.make_room(0, site.rules, site.charged, deadline)  # before minutes of work, not after them
    flight.tell("fetching and packing it")
    with progress.told(work.fd, teller(flight)):
        result = importer.import_image(want.reference, digest, work, deadline)
    work.settle()
    with work.errors():
        fd = possession.claim(work.fd, result, importer.identity.uid)
    try:
        return [*evicted, *_publish(flight, fd, digest, importer.name)]
    finally:
        os.close(fd)


def _adopt(flight: Flight, work: scratch.Scratch) -> tuple[Obtained | None, str]:
    """Take over what another launcher left, if the policy says from where; or say why what is there is not taken."""
    want, site, deadline = flight[:3]
    if want.reference.digest or not site.rules.adopt or not launchers.is_unambiguous(want.reference):
        return None, ""
    with work.errors():
        fd = os.open(ADOPTED_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=work.fd)
    try:
        names = launchers.names_of(want.reference)
        taken = site.store.adopt(fd, site.rules.adopt, names, want.times.fresh_after, deadline)
        if isinstance(taken, str):
            return None, taken
        digest = ADOPTED + taken.sha256
        try:
            evicted = _publish(flight, fd, digest, f"adopted from {taken.path}")
        except ImageInvalid as error:  # a launcher's half image: the import follows, as without it
            return None, f"{taken.path}: {error}"
    finally:
        os.close(fd)
        with work.errors():
            os.unlink(ADOPTED_FILE, dir_fd=work.fd)
    _point(flight, digest, min(taken.changed, time.time()))
    image = as_obtained(site.store.find(want, deadline, digest), "adopted")
    return image and image._replace(missing=Missing(evicted=tuple(evicted))), ""


def _publish(flight: Flight, fd: int, digest: str, importer: str) -> list[str]:
    """Prove an inode that only root can write, and let the store's owner copy it; returns what was evicted for it."""
    want, site, deadline = flight[:3]
    size = os.fstat(fd).st_size
    flight.tell(f"checking {progress.format_size(size)}")
    verify.check_listing(fd, site.validator, deadline)
    evicted = site.store.make_room(size, site.rules, site.charged, deadline)
    flight.tell(f"publishing {progress.format_size(size)}")
    draft = Draft(
        digest=digest,
        reference=want.reference.canonical(),
        kind=want.kind,
        importer=importer,
        published=time.time(),
        node=site.node,
        job_id=site.job_id,
        charged=site.charged,
    )
    site.store.publish_image(fd, image_name(digest, want.kind), draft, flight.owner, deadline)
    return evicted


def _point(flight: Flight, digest: str, resolved: float) -> None:
    """Let the tag, and the names that launchers look for, lead to the image."""
    want, site, deadline = flight[:3]
    if want.reference.tag:
        site.store.point(want, digest, resolved, flight.owner, deadline)
    # What one user asked for gets no name: `a_b` and `a/b` are the same file to launchers.
    if site.rules.names and site.charged.uid == -1 and not is_adopted(digest):
        path = os.path.join(site.store.path, "images", image_name(digest, want.kind) + launchers.IMAGE)
        with suppress(WarmstartError):
            site.store.link_for_launchers(site.rules.names, launchers.names_of(want.reference), path, deadline)

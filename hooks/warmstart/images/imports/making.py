"""Making an image: everything between taking the lock and the published image. Runs as root.

In no hook: the background import (`queue.imports`) and the command line run it. Whoever gets the lock looks up the
image again, because the previous holder may just have published it. A failure is recorded before the lock is released,
so that waiters find it.

The importer's result is claimed before it is checked (docs/threats.md, row 11). The importer's processes are dead by
then. `claim` checks an inode and not a name: it is a regular file with one link, owned by the import account. `claim`
makes it root's and read-only, and proves by a read lease that no descriptor or mapping for writing is left: the kernel
grants one only then (fcntl(2), F_SETLEASE). The validated inode is the one that is copied (docs/adr/index.md, 2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from warmstart.errors import StoreError, UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import open_regular
from warmstart.images import scratch
from warmstart.images.importers.base import (
    ImageForbidden,
    ImageMalformed,
    ImageNotFound,
    Importer,
    RegistryAnswerUnusable,
    Report,
)
from warmstart.images.imports import verify, waiting
from warmstart.images.imports.waiting import ImageWaitExpired
from warmstart.images.query import Missing, Obtained, Site, as_obtained, query_by_rules
from warmstart.images.reference import Reference
from warmstart.images.scratch import Caps, Scratch
from warmstart.images.squashfs import ImageInvalid
from warmstart.images.store import eviction, published
from warmstart.images.store.layout import NOBODY, Charged, ImageQuery, image_name
from warmstart.images.store.published import ImageDraft, ImageProducer, RememberedFailure

RESOLVE_KNOWN_S = 20.0  # for a registry's answer on a tag whose last digest is in the store
CLEAN_UP_S = 5.0
ELECTION_S = 3.0
ELECTION_PAUSE_S = 0.1
ELECTION_TRIES = 3
PROGRESS_S = 2.0  # between two reports of the same phase
ANNOUNCE_S = 2.0  # for one report, while the import's programs run on


class ImageNotOurs(StoreError):
    """The importer's result could still be changed by others than root."""

    code = "image-not-ours"
    template = "the importer's result {name} cannot be trusted: {problem}"
    hint = "check that paths.workspace is on a local disk (ext4, xfs) and that the import account runs nothing else"


class Stopped(SystemExit):
    """This process shall end; `error` is what waiters are told, None if the import will be made later."""

    def __init__(self, status: int, error: StoreError | None) -> None:
        super().__init__(status)
        self.error = error


class Flight(NamedTuple):
    """One import by this producer."""

    query: ImageQuery
    site: Site
    deadline: Deadline
    producer: ImageProducer  # what waiters are told
    writer: str  # names its temporary files in the store
    lockless: str  # why it has no lock, "" if it has one

    def tell(self, phase: str, done: int = 0) -> None:
        """Announce to waiters what is done now, and how many bytes so far; ignore errors."""
        producer = self.producer._replace(phase=phase, done=done)
        self.site.watch(producer)
        with suppress(WarmstartError):
            self.site.store.run(self.deadline, published.announce, self.query.lock, producer, self.writer)


@contextmanager
def begun(query: ImageQuery, site: Site, deadline: Deadline) -> Iterator[Flight | None]:
    """Be the producer for a `with`; yields None if another process is."""
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    producer = ImageProducer(site.requester.node, os.getpid(), site.requester.job_id, since)
    writer = site.writer(query)
    with site.store.holding(deadline, published.begin, query.lock, producer, writer) as lockless:
        if lockless is None:
            yield None
            return
        try:
            yield Flight(query, site, deadline, producer, writer, lockless)
        finally:
            with suppress(WarmstartError):
                site.store.run(after(CLEAN_UP_S), published.end, query.lock)


@contextmanager
def elected(query: ImageQuery, site: Site, deadline: Deadline) -> Iterator[Flight | None]:
    """Be the producer as with `begun`, but try again: waiters take the lock for a moment to probe it.

    Whoever has recorded itself as producer, and still holds the lock at the third look, is at work.
    """
    until, met = deadline.within(ELECTION_S), 0
    while True:
        with begun(query, site, deadline) as flight:
            if flight is not None or until.expired():
                yield flight
                return
        met += site.store.run(deadline, published.producer_of, query.lock) is not None
        if met == ELECTION_TRIES:
            yield None
            return
        time.sleep(ELECTION_PAUSE_S * (1 + random.random()))  # noqa: S311 - jitter between nodes; no secret


def obtain(reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    """Return the image, for the command line: import it in this process if it is missing, or wait for another one.

    Raises the errors of an import, also those that another one has just had, and `ImageWaitExpired`; not those that
    leave the image that the tag meant last.
    """
    query, site = query_by_rules(reference, site.rules, site.recipe), site.about(reference)
    try:
        image = _import_or_wait(query, site, deadline)
    except WarmstartError as error:
        last = waiting.last_image(query, site, error, deadline)
        if last is None:
            raise
        image = last
    site.record_use(image.name, deadline)
    return image


def _import_or_wait(query: ImageQuery, site: Site, deadline: Deadline) -> Obtained:
    started, how, waited_s = time.monotonic(), "reused", 0.0
    for _ in waiting.looks(deadline):
        if image := site.look_up(query, how, deadline):
            return image._replace(waited_s=waited_s)
        raise_remembered(query, site, deadline)
        with begun(query, site, deadline) as flight:
            if flight:
                return produce(flight, how)._replace(waited_s=waited_s)
        how, waited_s = "waited", round(time.monotonic() - started, 3)
    doing = waiting.describe_producer(query, site) or "its producer is unknown"
    raise ImageWaitExpired(image=query.reference.canonical(), waited_s=round(waited_s), producer=doing)


def produce(flight: Flight, how: str) -> Obtained:
    """Import and publish the image. If it is in the store by now, return it with `how`."""
    query, site, deadline = flight[:3]
    try:
        raise_remembered(query, site, deadline)
        image = site.look_up(query, how, deadline) or _import(flight)
        return image._replace(missing=image.missing._replace(lockless=image.missing.lockless or flight.lockless))
    except (UserError, StoreError) as error:
        _remember(flight, error)
        raise
    except Stopped as stopped:
        _remember(flight, stopped.error)
        raise


def _remember(flight: Flight, error: UserError | StoreError | None) -> None:
    if error is not None:
        with suppress(WarmstartError):
            failure = RememberedFailure.of(error, flight.site.charged.uid)
            flight.site.store.run(after(CLEAN_UP_S), published.remember, flight.query.lock, failure, flight.writer)


def raise_remembered(query: ImageQuery, site: Site, deadline: Deadline) -> None:
    """Raise the definitive failure that an import of this reference had recently, if any."""
    failure = site.store.run(deadline, published.last_failure, query.lock)
    if failure and published.is_definitive(failure):
        error = published.as_error(failure)
        if error:
            raise error


def _import(flight: Flight) -> Obtained:
    query, site = flight.query, flight.site
    site.store.run(flight.deadline, published.sweep, query.lock)
    importer, caps = site.importer(), Caps(site.rules.max_size)
    opened = scratch.opened(site.workspace, site.requester.run_id, importer.identity, caps)
    with _places_held(flight) as lockless, opened as work:
        image = _fetch(flight, importer, work)
    return image._replace(missing=image.missing._replace(lockless=lockless))


def _fetch(flight: Flight, importer: Importer, work: Scratch) -> Obtained:
    query, site, deadline = flight[:3]
    resolved, last = time.time(), waiting.known(query, site, deadline)
    flight.tell("asking the registry what the tag means" if query.reference.tag else "asking the registry for it")
    patience = deadline.within(RESOLVE_KNOWN_S) if last is not None else deadline
    digest = importer.resolve(query.reference, work, patience)
    stored = site.store.find(query, deadline, digest)
    image = as_obtained(stored, "reused")  # under another tag, or the tag has not moved
    missing = Missing()
    if image is None:
        if last is not None:
            _confirm(flight, digest, importer, work)
        if stored is not None:
            site.store.run(deadline, published.put_away, stored.name)
        with _told_both(flight, last, digest):
            evicted = _make(flight._replace(producer=flight.producer._replace(digest=digest)), digest, importer, work)
        missing = Missing(damaged=stored.invalid if stored else "", evicted=tuple(evicted))
        image = site.look_up(query, "imported", deadline, digest)
    if image is None:  # evicted meanwhile
        raise ImageInvalid(problem="it was published and is gone")
    _point(flight, image, resolved)
    return image._replace(missing=missing)


def _confirm(flight: Flight, digest: str, importer: Importer, work: Scratch) -> None:
    """Ask the registry for a tag's new manifest by its digest: only one that it has there is believed.

    What a broken proxy changed has a digest that names nothing. Raises `RegistryAnswerUnusable`.
    """
    reference = flight.query.reference
    with _whole_answers(reference, digest):
        importer.resolve(reference._replace(tag="", digest=digest), work, flight.deadline)


@contextmanager
def _whole_answers(reference: Reference, digest: str) -> Iterator[None]:
    """Raise `RegistryAnswerUnusable` where a registry that has just shown a manifest does not give a part of it.

    The tag itself is neither gone nor forbidden then.
    """
    try:
        yield
    except (ImageNotFound, ImageForbidden, RegistryAnswerUnusable) as error:
        cause = f" ({error.fields['problem']})" if "problem" in error.fields else ""
        problem = f"the manifest {digest}, and then did not give all that belongs to it{cause}"
        raise RegistryAnswerUnusable(image=reference.canonical(), problem=problem) from error


@contextmanager
def _told_both(flight: Flight, last: Obtained | None, digest: str) -> Iterator[None]:
    """Have every failure of an import name the image as it was asked for, what that means now, and what it meant."""
    try:
        with _whole_answers(flight.query.reference, digest):
            yield
    except WarmstartError as error:
        waiting.name_images(error, flight.query, last, digest)
        raise
    except Stopped as stopped:
        if stopped.error is not None:
            waiting.name_images(stopped.error, flight.query, last, digest)
        raise


def _make(flight: Flight, digest: str, importer: Importer, work: Scratch) -> list[str]:
    """Import, claim the result, and publish it; return the names of evicted images."""
    query, deadline = flight.query, flight.deadline
    # Fail before minutes of work rather than after them. Whether a quota has room depends on the image's size.
    evicted = _make_room(flight, 0, NOBODY)
    result = importer.import_image(query.reference, digest, work, deadline, _reporting(flight))
    work.sync(deadline)
    with work.errors():
        fd = claim(work.fd, result, importer.identity.uid)
    try:
        return [*evicted, *_publish(flight, work, fd, digest, importer.name)]
    finally:
        os.close(fd)


def _publish(flight: Flight, work: Scratch, fd: int, digest: str, importer: str) -> list[str]:
    """Check a claimed inode, and have the store's owner copy it; return the names of evicted images."""
    query, site, deadline = flight[:3]
    with work.errors():
        size = os.fstat(fd).st_size
    flight.tell("checking it")
    try:
        listing = verify.check_listing(fd, site.validator, deadline)
    except ImageInvalid as error:
        if error.fields.get("again"):
            raise
        raise ImageMalformed(image=query.reference.canonical(), problem=error.fields["problem"]) from error
    evicted = _make_room(flight, size, site.charged)
    flight.tell("publishing it")
    draft = ImageDraft(
        digest=digest,
        reference=query.reference.canonical(),
        kind=query.kind,
        importer=importer,
        published=time.time(),
        node=site.requester.node,
        job_id=site.requester.job_id,
        charged=site.charged,
        files=listing.files,
        unpacked=listing.bytes,
    )
    name = image_name(digest, query.kind)
    site.store.run_with(fd, deadline, published.publish_image, site.store.path, fd, name, draft, flight.writer)
    return evicted


def _make_room(flight: Flight, need: int, charged: Charged) -> list[str]:
    """Evict images to make room for `need` bytes; return their names."""
    site, deadline = flight.site, flight.deadline
    evicted = site.store.run(deadline, eviction.make_room, need, site.rules.keep, charged)
    if evicted:
        site.forget_gone(deadline)
    return evicted


def _point(flight: Flight, image: Obtained, resolved: float) -> None:
    """Point the tag to the image, and show it at other places."""
    query, site, deadline = flight[:3]
    if query.reference.tag:
        site.store.run(deadline, published.point, query.key, image.digest, resolved, flight.writer)
    # Not what a user chose: elsewhere `a_b` and `a/b` may be the same name.
    if site.charged.uid == -1:
        for place in site.places():
            with suppress(WarmstartError):
                place.show(query.reference, image.path, site.store, deadline)


@contextmanager
def _places_held(flight: Flight) -> Iterator[str]:
    """Keep others from importing the image at other places; yield "", or why we go on without that."""
    query, site, deadline = flight[:3]
    with ExitStack() as stack:
        held = [place.held(query.reference, site.store, deadline, flight.tell) for place in site.places()]
        yield "; ".join(filter(None, map(stack.enter_context, held)))


def _reporting(flight: Flight) -> Report:
    """Return a function that tells waiters of an import's progress, every few seconds and at each new phase."""
    last, due = "", 0.0

    def report(phase: str, done: int) -> None:
        nonlocal last, due
        now = time.monotonic()
        if phase != last or now >= due:
            last, due = phase, now + PROGRESS_S
            flight._replace(deadline=after(ANNOUNCE_S)).tell(f"{phase} it", done)

    return report


def claim(dir_fd: int, name: str, uid: int) -> int:
    """Make the file `name` of uid `uid` (the importer's) root's, mode 0444; return its descriptor.

    On return nobody can write its inode any more. Raises `ImageNotOurs`, or `OSError` if the disk fails.
    """
    try:
        fd = open_regular(name, dir_fd)
    except OSError as error:
        raise ImageNotOurs(name=name, problem=error.strerror) from error
    try:
        _check(fd, name, uid)
        os.fchown(fd, os.geteuid(), os.getegid())
        os.fchmod(fd, 0o444)
        _prove_unwritten(fd, name)
        _check(fd, name, os.geteuid())  # again: a second link may have been made before the inode was ours
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check(fd: int, name: str, uid: int) -> None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != uid:
        problem = f"uid {status.st_uid}, {status.st_nlink} links, mode {stat.S_IMODE(status.st_mode):o}"
        raise ImageNotOurs(name=name, problem=problem)


def _prove_unwritten(fd: int, name: str) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        held = error.errno in (errno.EAGAIN, errno.EACCES)
        problem = "a process has it open for writing" if held else f"no lease on it: {error.strerror}"
        raise ImageNotOurs(name=name, problem=problem) from error
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

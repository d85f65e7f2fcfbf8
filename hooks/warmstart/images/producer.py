"""The producer's part of a single flight: everything between the lock and the published image.

Never on a warm hook's path. The lock's holder looks again, because the one before it may have just published; a
definitive failure is written down before the lock goes, so that the next holder finds it.

One producer at work: what it holds, what it tells its waiters, and what it asks of the store.

Never on a warm hook's path.

What a producer tells its waiters while it works: for the length of an import, how much of it is on the disk.

A process of its own looks every few seconds: the importer's programs say nothing that could be relied on. It ends
with the hook, however that ends.

Take what an importer made away from its account, for good (docs/threats.md, row 11).

The importer's processes are dead by now, with their namespaces. What is proved here is proved of an inode, not
of a name: one link, regular, the import account's; then it is root's and read-only; then no descriptor open
for writing is left anywhere, a mapping or a descriptor that was passed on included: the kernel grants a read
lease only then (fcntl(2), F_SETLEASE). The validated inode is the one that is copied (docs/adr/0002).
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart.errors import StoreError, UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import DIRECTORY, open_regular
from warmstart.images import launchers, published, scratch, verify
from warmstart.images.importers.base import Importer, RegistryUnreachable
from warmstart.images.layout import ADOPTED, ImageQuery, Pointer, TagTimes, image_name, is_adopted
from warmstart.images.published import Draft, Producer, RememberedFailure, temp_owner
from warmstart.images.query import Missing, Obtained, Site, as_obtained, query_by_rules
from warmstart.images.reference import Reference
from warmstart.images.scratch import Caps
from warmstart.images.squashfs import ImageInvalid

RESOLVE_KNOWN_S = 20.0  # for a registry's answer on a tag whose last digest is in the store
ADOPTED_FILE = "adopted.sqsh"
CLEAN_UP_S = 5.0
COURTESY = 4  # the part of what is left of the wait that a launcher's lock may cost: one in this many
LONGEST_COURTESY_S = 120.0
POLL_S = 0.25
EVERY_S = 2.0
DEEPEST = 3  # layers and results lie above; the unpacked tree goes on below
MOST = 2000  # entries looked at
SIGKILL = 9
BLOCK = 512  # bytes in st_blocks


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
        if error.code in published.DEFINITIVE:
            failure = RememberedFailure(error.code, {name: str(value) for name, value in error.fields.items()})
            with suppress(WarmstartError):
                site.store.remember(want, failure, flight.owner, after(CLEAN_UP_S))
        raise
    finally:
        site.store.end(want, after(CLEAN_UP_S))


def raise_remembered(want: ImageQuery, site: Site, deadline: Deadline) -> None:
    """Raise the definitive failure that somebody met with this reference a short time ago."""
    failure = site.store.recall(want, site.rules.remember_failures, deadline)
    if failure and (error := published.as_error(failure)):
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
    with told(work.fd, teller(flight)):
        result = importer.import_image(want.reference, digest, work, deadline)
    work.settle()
    with work.errors():
        fd = claim(work.fd, result, importer.identity.uid)
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
    flight.tell(f"checking {format_size(size)}")
    verify.check_listing(fd, site.validator, deadline)
    evicted = site.store.make_room(size, site.rules, site.charged, deadline)
    flight.tell(f"publishing {format_size(size)}")
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
        other._replace(deadline=after(CLEAN_UP_S)).tell(f"fetching and packing it, {format_size(count)} so far")

    return tell


@contextmanager
def told(directory: int, tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell` with the bytes below a directory every few seconds, in a forked process, during a `with`.

    `tell` runs in that process only; what it raises ends it and nothing else.
    """
    ended, ending = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(ending)
            while not select.select([ended], [], [], EVERY_S)[0]:
                tell(measure(directory))
        finally:
            os._exit(0)
    os.close(ended)
    try:
        yield
    finally:
        os.close(ending)
        _reap(pid)


def _reap(pid: int) -> None:
    """Let it finish what it says; one that hangs in the store is killed."""
    for _ in range(200):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        select.select([], [], [], 0.01)
    os.kill(pid, SIGKILL)
    os.waitpid(pid, 0)


def measure(directory: int) -> int:
    """Return the bytes on disk of the files near the top of a directory; follows no links, opens no file."""
    with suppress(OSError):
        return _measure(directory, DEEPEST, [MOST])
    return 0


def _measure(directory: int, depth: int, left: list[int]) -> int:
    total = 0
    for name in os.listdir(directory):
        left[0] -= 1
        if left[0] < 0:
            break
        with suppress(OSError):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            total += status.st_blocks * BLOCK
            if depth > 1 and stat.S_ISDIR(status.st_mode):
                below = os.open(name, DIRECTORY, dir_fd=directory)
                try:
                    total += _measure(below, depth - 1, left)
                finally:
                    os.close(below)
    return total


def format_size(count: int) -> str:
    """Return bytes in words."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


class ImageNotOurs(StoreError):
    """What the importer left can't be made ours alone."""

    code = "image-not-ours"
    template = "the importer's {name} can't be trusted: {problem}"
    hint = "is paths.workspace on a local disk (ext4, xfs), and does the import account run nothing else?"


def claim(dir_fd: int, name: str, uid: int) -> int:
    """Return a descriptor of the file `name`, now root's, 0444, and written by nobody; `uid` is the importer's.

    Raises `ImageNotOurs`, or `OSError` for a disk that fails.
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
        _check(fd, name, os.geteuid())  # a link made before the inode was ours would be one that stays
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
        problem = "somebody has it open for writing" if held else f"no lease on it: {error.strerror}"
        raise ImageNotOurs(name=name, problem=problem) from error
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

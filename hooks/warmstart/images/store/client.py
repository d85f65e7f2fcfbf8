"""Client for the image store: one method for each operation that runs as the store's owner.

Hot path: methods import what a warm look-up does not need.
"""

from __future__ import annotations

import os
import time

from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.host.worker import Worker
from warmstart.images.store import layout
from warmstart.images.store.layout import DAY, PRIVATE_STORES, Charged, Found, ImageQuery, Pointer
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, NamedTuple, Sequence, contextmanager
from warmstart.store.layout import OWNERS_ROOMS, store_errors

if TYPE_CHECKING:
    from typing import ParamSpec, TypeVar

    from warmstart.images.store.eviction import ImageEntry, QuarantinedImage
    from warmstart.images.store.launchers import AdoptedImage
    from warmstart.images.store.published import ByteCheck, ImageDraft, ImageProducer, Published, RememberedFailure
    from warmstart.images.store.requeued import RequeuedJob
    from warmstart.policy.compiled import Adopt, Images

    P = ParamSpec("P")
    R = TypeVar("R")


class ImageStoreClient(NamedTuple):
    """The images in one directory of the store.

    Each method raises `StoreFull` or `StoreFailed` for an `OSError` of the store, `WorkerSilent` at its deadline, and
    the errors of the function that it is named after. `name` is an image's file name without its ending
    (`layout.image_name`); `writer` names temporary files (`published.writer_of`).
    """

    worker: Worker  # runs as the store's owner and holds the locks; clients of other directories share it
    path: str  # the store, or a store of private images below it (private.py)
    what: str = ""  # subject of error messages, "" for this store

    @classmethod
    def of(cls, identity: Identity, path: str) -> ImageStoreClient:
        """Return a client with a worker of its own. The caller closes it."""
        return cls(Worker(identity, rooms=OWNERS_ROOMS), path)

    def __enter__(self) -> ImageStoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def identity(self) -> Identity:
        """The store's owner."""
        return self.worker.identity

    def about(self, what: str) -> ImageStoreClient:
        """Return this client with `what` as the subject of its errors."""
        return self._replace(what=what)

    def at(self, path: str) -> ImageStoreClient:
        """Return a client of the store at `path` that shares this one's worker."""
        return self._replace(path=path)

    def separate(self) -> ImageStoreClient:
        """Return a client with a worker of its own, for another process."""
        return self._replace(worker=self.worker.another())

    def close(self) -> None:
        """End the worker, which releases its locks."""
        self.worker.close()

    # Looking up and recording uses

    def find(self, query: ImageQuery, deadline: Deadline, digest: str = "") -> Found | None:
        """Look up an image, by `digest` if given; None if it is not in the store."""
        digest = digest or query.reference.digest
        return self._look(deadline, layout.find, self.path, query.key, digest, query.kind, query.fresh_after)

    def record_use(self, name: str, node: str, known: str, deadline: Deadline) -> bool:
        """Record that a node uses an image; return False if `known` says that it has done so within a day.

        `known` is a directory of root's on this node, whose files are named after images: their mtime is when the use
        was recorded. Also raises the `OSError` of its disk.
        """
        if is_recorded(known, name):
            return False
        from warmstart.host.files import ensure_path, touch
        from warmstart.images.store import uses

        self._run(deadline, uses.record, self.path, name, node)
        ensure_path(known, 0o700)
        touch(f"{known}/{name}")
        return True

    def record_noted(self, names: list[str], node: str, uid: int, deadline: Deadline) -> int:
        """Record the uses that jobs of a user have noted; return how many were new."""
        from warmstart.images.store import uses

        return self._run(deadline, uses.record_noted, self.path, names, node, uid)

    # Election of a producer

    def begin(self, query: ImageQuery, producer: ImageProducer, writer: str, deadline: Deadline) -> str | None:
        """Become the producer; None if another hook is.

        Otherwise return why the store's file system gives no lock, "" if it does.
        """
        from warmstart.images.store import published

        return self._run(deadline, published.begin, self.path, query.lock, producer, writer)

    def announce(self, query: ImageQuery, producer: ImageProducer, writer: str, deadline: Deadline) -> None:
        """Record what the producer does now."""
        from warmstart.images.store import published

        self._run(deadline, published.announce, self.path, query.lock, producer, writer)

    def end(self, query: ImageQuery, deadline: Deadline) -> None:
        """Release the producer's lock, by ending the worker if the store fails. Raises no `WarmstartError`."""
        from warmstart.images.store import published

        try:
            self._run(deadline, published.end, self.path, query.lock)
        except WarmstartError:
            self.close()

    def is_at_work(self, query: ImageQuery, deadline: Deadline) -> bool:
        """Return whether a live producer imports the image."""
        from warmstart.images.store import published

        return self._look(deadline, published.is_at_work, self.path, query.lock)

    def under_way(self, deadline: Deadline) -> dict[str, ImageProducer]:
        """Return the live producers by the names of their locks."""
        from warmstart.images.store import published

        return self._run(deadline, published.under_way, self.path)

    def producer_of(self, query: ImageQuery, deadline: Deadline) -> ImageProducer | None:
        """Return what the producer has recorded about itself, or None."""
        from warmstart.images.store import published

        return self._look(deadline, published.producer_of, self.path, query.lock)

    def remember(self, query: ImageQuery, failure: RememberedFailure, writer: str, deadline: Deadline) -> None:
        """Record how an import failed, for those who wait and, if it is definitive, for those who come next."""
        from warmstart.images.store import published

        self._run(deadline, published.remember, self.path, query.lock, failure, writer)

    def last_failure(self, query: ImageQuery, deadline: Deadline) -> RememberedFailure | None:
        """Return how the last import of the image that failed did so, or None."""
        from warmstart.images.store import published

        return self._look(deadline, published.last_failure, self.path, query.lock)

    # Jobs that were requeued for an image

    def count_requeue(self, job: RequeuedJob, most: int, writer: str, deadline: Deadline) -> int:
        """Count a requeue that is about to be made; return how many these are, 0 if the job has had `most` already."""
        from warmstart.images.store import requeued

        return self._run(deadline, requeued.count, self.path, job, most, writer)

    def waiting(self, image: str, cluster: str, deadline: Deadline) -> list[RequeuedJob]:
        """Return the jobs of a cluster that were requeued because an image was missing."""
        from warmstart.images.store import requeued

        return self._run(deadline, requeued.waiting, self.path, image, cluster)

    def settle(self, jobs: list[RequeuedJob], deadline: Deadline) -> None:
        """Record that these jobs need not wait any more."""
        from warmstart.images.store import requeued

        self._run(deadline, requeued.settle, self.path, jobs)

    def forget_requeued(self, deadline: Deadline) -> int:
        """Remove what is known of jobs that were not requeued for long; return how many those are."""
        from warmstart.images.store import requeued

        return self._run(deadline, requeued.forget, self.path)

    # Tags

    def last_pointer(self, query: ImageQuery, deadline: Deadline) -> Pointer | None:
        """Return the last known digest of the tag, however old; None if there is none."""
        from warmstart.images.store import published

        return self._look(deadline, published.last_pointer, self.path, query.key)

    def point(self, query: ImageQuery, digest: str, resolved: float, writer: str, deadline: Deadline) -> None:
        """Record the digest that the tag had at `resolved` (seconds since the epoch)."""
        from warmstart.images.store import published

        self._run(deadline, published.point, self.path, query.key, digest, resolved, writer)

    # Publishing, copying and evicting images

    def publish_image(self, fd: int, name: str, draft: ImageDraft, writer: str, deadline: Deadline) -> Published:
        """Copy an open local image into the store, check the copy, and make it visible."""
        from warmstart.images.store import published

        return self._run_with(fd, deadline, published.publish_image, self.path, fd, name, draft, writer)

    def copy_out(self, path: str, fd: int, deadline: Deadline) -> str:
        """Copy an image into an open local file; return what is wrong with that file's disk, "" if nothing."""
        from warmstart.images.store import published

        return self._run_with(fd, deadline, published.copy_out, path, fd)

    def sweep(self, query: ImageQuery, deadline: Deadline) -> int:
        """Remove half-copied files of dead producers of an image; return how many."""
        from warmstart.images.store import published

        return self._run(deadline, published.sweep, self.path, query.lock)

    def make_room(self, need: int, rules: Images, charged: Charged, deadline: Deadline) -> list[str]:
        """Evict images to make room for `need` bytes; return the names of those that were evicted."""
        from warmstart.images.store import eviction

        return self._run(deadline, eviction.make_room, self.path, need, rules.keep, charged, rules.names)

    def evict(self, name: str, rules: Images, deadline: Deadline, *, forced: bool = False) -> bool:
        """Remove an image; False if it is missing, or protected and not `forced`."""
        from warmstart.images.store import eviction

        return self._run(deadline, eviction.evict, self.path, name, rules.keep.lease, rules.names, forced)

    def pin(self, name: str, writer: str, deadline: Deadline) -> None:
        """Protect an image from eviction until `unpin`."""
        from warmstart.images.store import eviction

        self._run(deadline, eviction.pin, self.path, name, writer)

    def unpin(self, name: str, deadline: Deadline) -> bool:
        """Make a pinned image evictable again; False if it was not pinned."""
        from warmstart.images.store import eviction

        return self._run(deadline, eviction.unpin, self.path, name)

    # Damaged images

    def check_bytes(self, name: str, writer: str, deadline: Deadline, *, again: bool = False) -> ByteCheck:
        """Compare an image with its recorded SHA-256; skip a file that has passed before, unless `again`."""
        from warmstart.images.store import published

        return self._run(deadline, published.check_bytes, self.path, name, writer, again)

    def unrecorded(self, deadline: Deadline) -> list[str]:
        """Return the names of images whose producers died before they wrote the metadata."""
        from warmstart.images.store import published

        return self._run(deadline, published.unrecorded, self.path)

    def quarantine(self, name: str, reason: str, deadline: Deadline, *, inode: int = 0) -> bool:
        """Quarantine a damaged image; False if it is gone, or another inode than `inode` has its name."""
        from warmstart.images.store import published

        return self._run(deadline, published.quarantine, self.path, name, reason, inode)

    def empty_quarantine(self, now: float, lease: float, deadline: Deadline) -> list[str]:
        """Remove damaged images that are old or too many; return their names in quarantine. Times in seconds."""
        from warmstart.images.store import eviction

        return self._run(deadline, eviction.empty_quarantine, self.path, now, lease)

    # Listing

    def inventory(self, lease: float, deadline: Deadline) -> list[ImageEntry]:
        """Return all images, the least recently used first. `lease` in seconds."""
        from warmstart.images.store import eviction

        return self._run(deadline, eviction.inventory, self.path, lease)

    def tags(self, deadline: Deadline) -> dict[str, list[str]]:
        """Return the references that have been resolved, by the digest that each had last."""
        from warmstart.images.store import eviction

        return self._run(deadline, eviction.tags, self.path)

    def quarantined(self, deadline: Deadline) -> list[QuarantinedImage]:
        """Return all damaged images, the oldest first."""
        from warmstart.images.store import eviction

        return self._run(deadline, eviction.quarantined, self.path)

    def stores(self, deadline: Deadline) -> list[str]:
        """Return the paths of this store and of its stores of private images, without those that have no images."""
        from warmstart.images.store import eviction

        return self._run(deadline, eviction.stores, self.path)

    def private(self, name: str, deadline: Deadline) -> ImageStoreClient:
        """Return a client of the store of private images `name`; create that store if it is missing."""
        from warmstart.images.store import published

        self._run(deadline, published.ensure_private, self.path, name)
        return self.at(os.path.join(self.path, PRIVATE_STORES, name))

    # Other launchers

    def try_launchers_lock(self, directory: str, name: str, deadline: Deadline) -> str:
        """Take the launchers' lock of an image; return "", `launchers.BUSY`, or why there is none."""
        from warmstart.images.store import launchers

        return self._run(deadline, launchers.try_lock, directory, name)

    def release_launchers_lock(self, name: str, deadline: Deadline) -> None:
        """Release the launchers' lock of an image."""
        from warmstart.images.store import launchers

        self._run(deadline, launchers.unlock, name)

    def link_for_launchers(self, directory: str, names: Sequence[str], path: str, deadline: Deadline) -> int:
        """Make links to an image in the launchers' directory; return how many."""
        from warmstart.images.store import launchers

        return self._run(deadline, launchers.link, directory, names, path)

    def adopt(
        self, fd: int, directories: Sequence[Adopt], names: Sequence[str], not_before: float, deadline: Deadline
    ) -> AdoptedImage | str:
        """Copy a launcher's image into an open local file; or return why none is adopted, "" if there is none.

        Arguments as for `launchers.adopt`.
        """
        from warmstart.images.store import launchers

        return self._run_with(fd, deadline, launchers.adopt, fd, directories, names, not_before)

    @property
    def _subject(self) -> str:
        return self.what or f"the image store of {self.path}"

    def _look(self, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        with _errors(self._subject):
            return self.worker.look(deadline, function, *args, **kwargs)

    def _run(self, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        with _errors(self._subject):
            return self.worker.run(deadline, function, *args, **kwargs)

    def _run_with(self, fd: int, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that needs a descriptor, in a new worker: the other one may have been forked too early."""
        with _errors(self._subject), self.worker.another(keep=[fd]) as child:
            return child.run(deadline, function, *args, **kwargs)


@contextmanager
def _errors(subject: str) -> Iterator[None]:
    """Raise errors of the store and of its worker with a subject that means something to users."""
    try:
        with store_errors(subject):
            yield
    except WorkerSilent as error:
        raise type(error)(what=subject, problem=error.fields["problem"]) from error


def is_recorded(known: str, name: str) -> bool:
    """Return whether this node has recorded its use of an image within a day; one stat(2) on the local disk."""
    try:
        return 0 <= time.time() - os.stat(f"{known}/{name}").st_mtime < DAY
    except OSError:
        return False

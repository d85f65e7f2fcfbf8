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
from warmstart.images.store.layout import DAY, PRIVATE_STORES, Found, ImageQuery
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, NamedTuple, Sequence, contextmanager
from warmstart.store.layout import OWNERS_ROOMS, store_errors

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, TypeVar

    from warmstart.images.store.launchers import AdoptedImage
    from warmstart.images.store.published import ImageDraft, Published
    from warmstart.policy.compiled import Adopt

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

    def run(
        self, deadline: Deadline, function: Callable[Concatenate[str, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function of this folder on the store's path, as the store's owner."""
        return self._run(deadline, function, self.path, *args, **kwargs)

    def look(
        self, deadline: Deadline, function: Callable[Concatenate[str, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function that may run twice, as `run` does; once more if the child dies."""
        with _errors(self._subject):
            return self.worker.look(deadline, function, self.path, *args, **kwargs)

    # Looking up and recording uses

    def find(self, query: ImageQuery, deadline: Deadline, digest: str = "") -> Found | None:
        """Look up an image, by `digest` if given; None if it is not in the store."""
        digest = digest or query.reference.digest
        return self.look(deadline, layout.find, query.key, digest, query.kind, query.fresh_after)

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

    # Election of a producer

    def end(self, query: ImageQuery, deadline: Deadline) -> None:
        """Release the producer's lock, by ending the worker if the store fails. Raises no `WarmstartError`."""
        from warmstart.images.store import published

        try:
            self._run(deadline, published.end, self.path, query.lock)
        except WarmstartError:
            self.close()

    # Jobs that were requeued for an image

    # Tags

    # Publishing, copying and evicting images

    def publish_image(self, fd: int, name: str, draft: ImageDraft, writer: str, deadline: Deadline) -> Published:
        """Copy an open local image into the store, check the copy, and make it visible."""
        from warmstart.images.store import published

        return self._run_with(fd, deadline, published.publish_image, self.path, fd, name, draft, writer)

    def copy_out(self, path: str, fd: int, deadline: Deadline) -> str:
        """Copy an image into an open local file; return what is wrong with that file's disk, "" if nothing."""
        from warmstart.images.store import published

        return self._run_with(fd, deadline, published.copy_out, path, fd)

    # Damaged images

    # Listing

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

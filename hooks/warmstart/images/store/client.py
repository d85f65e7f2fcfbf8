"""Client for the image store, whose functions run as the store's owner. Callers name the function.

Hot path: import a module of functions where it is called, unless a warm look-up needs it.
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
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, NamedTuple, contextmanager
from warmstart.store.client import OWNERS_ROOMS
from warmstart.store.layout import store_errors

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")


class ImageStoreClient(NamedTuple):
    """The images in one directory of the store.

    `run`, `look` and what is made of them raise `StoreFull` or `StoreFailed` for an `OSError` of the store,
    `WorkerSilent` at the deadline, and the errors of the function. `name` is an image's file name without its ending
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
        with _errors(self._subject):
            return self.worker.run(deadline, function, self.path, *args, **kwargs)

    def look(
        self, deadline: Deadline, function: Callable[Concatenate[str, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function that may run twice, as `run` does; once more if the child dies."""
        with _errors(self._subject):
            return self.worker.look(deadline, function, self.path, *args, **kwargs)

    def run_with(self, fd: int, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that needs a descriptor, in a new worker: the other one may have been forked too early.

        No path is bound.
        """
        with _errors(self._subject), self.worker.another(keep=[fd]) as child:
            return child.run(deadline, function, *args, **kwargs)

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

        self.run(deadline, uses.record, name, node)
        ensure_path(known, 0o700)
        touch(f"{known}/{name}")
        return True

    def end(self, query: ImageQuery, deadline: Deadline) -> None:
        """Release the producer's lock, by ending the worker if the store fails. Raises no `WarmstartError`."""
        from warmstart.images.store import published

        try:
            self.run(deadline, published.end, query.lock)
        except WarmstartError:
            self.close()

    def private(self, name: str, deadline: Deadline) -> ImageStoreClient:
        """Return a client of the store of private images `name`; create that store if it is missing."""
        from warmstart.images.store import published

        self.run(deadline, published.ensure_private, name)
        return self.at(os.path.join(self.path, PRIVATE_STORES, name))

    @property
    def _subject(self) -> str:
        return self.what or f"the image store of {self.path}"


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

"""Client for the image store, whose functions run as the store's owner. Callers name the function.

Hot path: import a module of functions where it is called, unless a warm look-up needs it.
"""

from __future__ import annotations

import os
import time

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker
from warmstart.images.store import layout
from warmstart.images.store.layout import DAY, PRIVATE_STORES, Found, ImageQuery
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, NamedTuple, contextmanager
from warmstart.store.layout import store_errors

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")


class ImageStoreClient(NamedTuple):
    """The images in one directory of the store.

    `run` and what is made of it raise `StoreFull` or `StoreFailed` for an `OSError` of the store, `WorkerSilent` at the
    deadline, and the errors of the function. `name` is an image's file name without its ending (`layout.image_name`);
    `writer` names temporary files (`published.writer_of`).
    """

    worker: Worker  # asks the store's owner
    path: str  # the store, or a store of private images below it (private.py)
    what: str = ""  # subject of error messages, "" for this store

    @classmethod
    def of(cls, identity: Identity, path: str) -> ImageStoreClient:
        """Return a client for a store's owner."""
        return cls(Worker(identity), path)

    def about(self, what: str) -> ImageStoreClient:
        """Return this client with `what` as the subject of its errors."""
        return self._replace(what=what)

    def at(self, path: str) -> ImageStoreClient:
        """Return a client of the store at `path`."""
        return self._replace(path=path)

    def run(
        self, deadline: Deadline, function: Callable[Concatenate[str, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function of this folder on the store's path, as the store's owner."""
        with store_errors(self.subject):
            return self.named.run(deadline, function, self.path, *args, **kwargs)

    @contextmanager
    def holding(
        self, deadline: Deadline, function: Callable[Concatenate[str, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[R]:
        """Run a function as `run` does, and have for a `with` what it holds until its process ends, such as a lock."""
        with self.named.begin(deadline, function, self.path, *args, **kwargs) as answer:
            with store_errors(self.subject):
                result = answer(deadline)
            yield result

    def run_with(self, fd: int, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that needs a descriptor. No path is bound."""
        with store_errors(self.subject):
            return self.named.keeping(fd).run(deadline, function, *args, **kwargs)

    def find(self, query: ImageQuery, deadline: Deadline, digest: str = "") -> Found | None:
        """Look up an image, by `digest` if given; None if it is not in the store."""
        digest = digest or query.reference.digest
        return self.run(deadline, layout.find, query.key, digest, query.kind, query.fresh_after)

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

    def private(self, name: str, deadline: Deadline) -> ImageStoreClient:
        """Return a client of the store of private images `name`; create that store if it is missing."""
        from warmstart.images.store import published

        self.run(deadline, published.ensure_private, name)
        return self.at(os.path.join(self.path, PRIVATE_STORES, name))

    @property
    def subject(self) -> str:
        """The subject of its errors."""
        return self.what or f"the image store of {self.path}"

    @property
    def named(self) -> Worker:
        """The worker, whose own errors have that subject, too."""
        return self.worker._replace(what=self.subject)


def is_recorded(known: str, name: str) -> bool:
    """Return whether this node has recorded its use of an image within a day; one stat(2) on the local disk."""
    try:
        return 0 <= time.time() - os.stat(f"{known}/{name}").st_mtime < DAY
    except OSError:
        return False

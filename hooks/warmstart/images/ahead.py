"""A job's image and the listings of its caches in one question to the store, as caches depend on the image's digest.

The process that finds the image says so, and looks for the listings while the hook goes on. The caches' step reads them
later. If it asks for anything else, or the image was not there at once, it asks anew. Hot path.
"""

from __future__ import annotations

from warmstart.caches.store import look
from warmstart.caches.store.look import Want
from warmstart.host.deadline import Deadline
from warmstart.host.identity import WorkerAnswerMalformed
from warmstart.images.store import layout
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import Found, ImageQuery
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, NamedTuple
from warmstart.store.layout import store_errors

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    Wanted = Callable[[str], tuple[list[str], list[Want]]]


class Listings(NamedTuple):
    """What there is to show of profiles, and the question."""

    scopes: list[str]
    wants: list[Want]
    found: list[look.Found]


if TYPE_CHECKING:
    Answers = Callable[[Deadline], Found | Listings | None]


class Ahead:
    """The question of one job. Its process ends with the hook at the latest."""

    def __init__(self, store: str, wanted: Wanted) -> None:
        """`store` has the caches; `wanted` returns by the image's digest for which scopes and wants they are asked."""
        self._store = store
        self._wanted = wanted
        self._asked: AbstractContextManager[Answers] | None = None
        self._answer: Answers | None = None

    def find(self, store: ImageStoreClient, query: ImageQuery, digest: str, deadline: Deadline) -> Found | None:
        """Look up an image as `ImageStoreClient.find` does."""
        self.close()
        self._asked = store.named.stream(deadline, self._answers, store.path, query, digest)
        self._answer = self._asked.__enter__()  # until `close`, in another step
        found = None
        try:
            with store_errors(store.subject):
                found = self._answer(deadline)
        finally:
            if found is None or isinstance(found, Listings) or found.invalid:
                self.close()
        if isinstance(found, Listings):
            raise WorkerAnswerMalformed(function="find", identity=store.worker.identity.name, problem="no image")
        return found

    def listings(self, scopes: list[str], wants: list[Want], deadline: Deadline) -> list[look.Found] | None:
        """Return the listings that were looked for; None if they are those of another question."""
        if self._answer is None:
            return None
        try:
            there = self._answer(deadline)
        finally:
            self.close()
        is_asked = isinstance(there, Listings) and (there.scopes, there.wants) == (scopes, wants)
        return there.found if is_asked and isinstance(there, Listings) else None

    def _answers(self, images: str, query: ImageQuery, digest: str) -> Iterator[Found | Listings | None]:
        """Yield the image, and then the listings, in the store's process."""
        found = layout.find(images, query.key, digest, query.kind, query.fresh_after)
        yield found
        if found is not None and not found.invalid:
            scopes, wants = self._wanted(found.digest)
            yield Listings(scopes, wants, look.look(self._store, scopes, wants))

    def close(self) -> None:
        """End the process."""
        if self._asked is not None:
            self._asked.__exit__(None, None, None)
        self._asked = self._answer = None

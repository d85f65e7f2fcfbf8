"""Places beside the shared store where others have images: a wing's `places.py` has them. Runs as root.

An import keeps others from importing the same image meanwhile, takes what they have, and shows them what the store has.
All of it is a courtesy: an import does not depend on it, and no other file than an image's crosses the boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from warmstart.host.deadline import Deadline
from warmstart.images.reference import Reference
from warmstart.images.store.client import ImageStoreClient
from warmstart.policy.compiled import Policy


class Copied(NamedTuple):
    """An image of a place that has been copied."""

    path: str
    sha256: str
    changed: float  # its mtime, seconds since the epoch


class Place(Protocol):
    """A place where others have images. The client's worker runs the wing's `stored.py`, too."""

    def held(
        self, reference: Reference, store: ImageStoreClient, deadline: Deadline, tell: Callable[[str], None]
    ) -> AbstractContextManager[str]:
        """Keep others from importing an image in a `with` block; give "", or why that cannot be had.

        It may wait for a part of the time. `tell` says to those who wait for the image what is done now.
        """

    def copy(
        self, target: int, reference: Reference, not_before: float, store: ImageStoreClient, deadline: Deadline
    ) -> Copied | str:
        """Copy what the place has for a tag into the descriptor `target`; if nothing, return why, "" if it has none.

        It counts only if it was changed at `not_before` (seconds since the epoch) or later.
        """

    def show(self, reference: Reference, path: str, store: ImageStoreClient, deadline: Deadline) -> None:
        """Let others find an image of the store."""

    def forget(self, store: ImageStoreClient, deadline: Deadline) -> None:
        """Let others find no image that the store has no more."""


class PlacesPart(Protocol):
    """`places.py` of a wing."""

    def of_policy(self, policy: Policy) -> Place:
        """Return the place of a policy that uses the wing."""

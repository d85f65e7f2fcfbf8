"""Places beside the shared store where others have images: a wing's `places.py` has them. Runs as root.

An import keeps others from importing the same image meanwhile, and shows them what the store has. It is a courtesy: an
import does not depend on it, and takes nothing from there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from warmstart.host.deadline import Deadline
from warmstart.images.reference import Reference
from warmstart.images.store.client import ImageStoreClient
from warmstart.policy.keys import Policy


class Place(Protocol):
    """A place where others have images. The client's worker runs the wing's `stored.py`, too."""

    def held(
        self, reference: Reference, store: ImageStoreClient, deadline: Deadline, tell: Callable[[str], None]
    ) -> AbstractContextManager[str]:
        """Keep others from importing an image in a `with` block; give "", or why that cannot be had.

        It may wait for a part of the time. `tell` says to those who wait for the image what is done now.
        """

    def show(self, reference: Reference, path: str, store: ImageStoreClient, deadline: Deadline) -> None:
        """Let others find an image of the store."""

    def forget(self, store: ImageStoreClient, deadline: Deadline) -> None:
        """Let others find no image that the store has no more."""


class PlacesPart(Protocol):
    """`places.py` of a wing."""

    def of_policy(self, policy: Policy) -> Place:
        """Return the place of a policy that uses the wing."""

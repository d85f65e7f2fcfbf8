"""Where launchers have their images: their lock, and their names for images. Runs as root."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from warmstart.host import wire
from warmstart.host.deadline import Deadline
from warmstart.images.reference import Reference
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import IMAGES
from warmstart.policy.keys import Policy
from warmstart.wings.launchers import stored

KEY = "launchers"  # of the policy
Path = str
SHARE = 4  # waiting for a launcher's lock may take one part in this many of the time left,
LONGEST_S = 120.0  # but no more than this
POLL_S = 0.25


class Launchers(NamedTuple):
    """Launchers that keep each image as `NAME.sqsh` ([launchers](../wings/launchers.md))."""

    directory: Path | None = None
    """Directory where launchers look for `NAME.sqsh`. warmstart keeps links there if only `store_user` and root can
    write it."""
    lock: bool = False
    """An import also holds `NAME.sqsh.lock` in `directory` for part of its time, as launchers that use `flock(1)` do.
    Needs `directory`."""

    @contextmanager
    def held(
        self, reference: Reference, store: ImageStoreClient, deadline: Deadline, tell: Callable[[str], None]
    ) -> Iterator[str]:
        """Hold the launchers' lock of an image, if the policy wants it."""
        if not self.lock:
            yield ""
            return
        there, name = self._at(store), stored.names_of(reference)[0]
        until = deadline.within(min(deadline.left() / SHARE, LONGEST_S))
        is_told = False
        while True:
            with there.holding(deadline, stored.try_lock, name) as problem:
                if problem != stored.BUSY or until.expired():
                    yield f"another process holds {name}{stored.LOCK}" if problem == stored.BUSY else problem
                    return
            if not is_told:
                tell("waiting for the launcher that has the lock beside the image")
                is_told = True
            time.sleep(min(POLL_S, until.left()))

    def show(self, reference: Reference, path: str, store: ImageStoreClient, deadline: Deadline) -> None:
        """Make links to an image under the launchers' names."""
        self._at(store).run(deadline, stored.link, stored.names_of(reference), path)

    def _at(self, store: ImageStoreClient) -> ImageStoreClient:
        assert self.directory is not None  # the wing is not in use without
        return store.at(self.directory)

    def forget(self, store: ImageStoreClient, deadline: Deadline) -> None:
        """Remove the links to images that are gone."""
        self._at(store).run(deadline, stored.forget, f"{store.path}/{IMAGES}")


def of_policy(policy: Policy) -> Launchers:
    """Return the launchers of a policy that uses the wing."""
    return wire.from_object(Launchers, policy.own[KEY])

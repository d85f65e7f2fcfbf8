"""What maintenance of the store does for launchers: links to images that are gone go. Runs as root."""

from __future__ import annotations

from warmstart.images.store.client import ImageStoreClient
from warmstart.session import Session
from warmstart.wings.launchers import places


def maintain(session: Session) -> None:
    """Remove links that eviction left: an image that a process killed meanwhile had removed, or maintenance has."""
    if places.KEY in session.policy.own:
        store = ImageStoreClient(session.store.worker, session.store.path)
        places.of_policy(session.policy).forget(store, session.store_deadline())

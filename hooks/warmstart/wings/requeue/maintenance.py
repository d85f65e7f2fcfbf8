"""What maintenance of the store does for the wing: it forgets jobs that were requeued long ago."""

from __future__ import annotations

from warmstart.maintenance.wings import Parts
from warmstart.session import Session
from warmstart.wings.requeue import stored
from warmstart.wings.requeue.client import RequeueClient


def forget(session: Session) -> int:
    """Remove what is known of jobs that were not requeued for a week; return how many files those are."""
    with RequeueClient.of(session.policy.store_user, session.store.path) as store:
        return store.run(session.store_deadline(), stored.forget)


PARTS = Parts(store={"requeued": forget})

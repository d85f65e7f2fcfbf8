"""What a spec tells a node of its job. Hot path where a rule needs it."""

from __future__ import annotations

from warmstart.host.deadline import Deadline
from warmstart.job import Job
from warmstart.policy.keys import Policy
from warmstart.store.client import StoreClient
from warmstart.wings.specs import keys, stored


def informed(policy: Policy, job: Job, store: StoreClient, deadline: Deadline) -> Job:
    """Return the job with the facts of its spec. Raises `StoreError`."""
    found = keys.of(policy)
    if found is None:
        return job
    path = stored.path_of(found.directory, job.cluster, job.id)
    written = store.worker.run(deadline.within(found.deadline), stored.read, path, found.user.uid)
    return stored.informed(job, path, written)

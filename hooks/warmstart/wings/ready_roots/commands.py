"""What `warmstart plan` says of ready roots."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.job import Job
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant
from warmstart.request import Request


def remarks(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:  # noqa: ARG001 - the shape of all wings'
    """Say from what a job's containers start."""
    if policy.paths.shelf and (requested.images or grant.images):
        yield "A container that would start from its image's file starts from the node's tree of it (paths.shelf)."

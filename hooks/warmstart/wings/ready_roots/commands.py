"""What commands say of ready roots."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart import plan
from warmstart.job import Job
from warmstart.policy.compiled import Policy
from warmstart.policy.match import Grant
from warmstart.policy.units import format_duration
from warmstart.request import Request
from warmstart.wings.ready_roots.settings import KEY, settings


def remarks(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:  # noqa: ARG001 - the shape of all wings'
    """Say from what the job's containers start."""
    if KEY in policy.own and plan.images(policy, grant, requested):
        wait = format_duration(settings(policy).wait)
        yield f"Containers start from the tree into which a node has unpacked the image; prologs wait {wait} for it."

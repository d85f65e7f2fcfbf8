"""What commands say of the caches of images that only steps name."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.job import Job
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant
from warmstart.request import Request
from warmstart.wings.step_images import caches


def remarks(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:  # noqa: ARG001 - the shape of all wings'
    """Say what a container of another image has, of a job that has caches at all."""
    if grant.profiles or requested.profiles:
        yield (
            "Each other image that a step names (srun --container-image) has caches of its own, for the same profiles: "
            f"{caches.MOST} of a job on a node, where the node has the socket for steps (warmstart doctor)."
        )

"""What commands say of ports."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.job import Job
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant
from warmstart.request import Request
from warmstart.wings.ports import step


def remarks(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:  # noqa: ARG001 - the shape of all wings'
    """Say which ports a job of several nodes gets."""
    if rule := step.granted(grant):
        low, high = rule.ports
        where = "also on shared nodes" if rule.shared_nodes else "if the first node is exclusive to the job"
        yield f"Multi-node jobs get MASTER_ADDR and MASTER_PORT ({low}-{high}), {where}."

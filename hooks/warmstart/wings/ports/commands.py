"""What commands say of ports."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.policy.match import Grant
from warmstart.wings.ports import step


def remarks(grant: Grant) -> Iterator[str]:
    """Say which ports a job of several nodes gets."""
    if rule := step.granted(grant):
        low, high = rule.ports
        where = "also on shared nodes" if rule.shared_nodes else "if the first node is exclusive to the job"
        yield f"Multi-node jobs get MASTER_ADDR and MASTER_PORT ({low}-{high}), {where}."

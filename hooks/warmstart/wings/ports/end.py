"""What a job's end frees: the ports that it holds on this node. Runs as root; hot path."""

from __future__ import annotations

from warmstart.audit.log import Log
from warmstart.host.deadline import Deadline
from warmstart.paths import NodePaths
from warmstart.wings.ports import ledger


def job_over(paths: NodePaths, node: str, job_id: int, audit: Log, deadline: Deadline) -> None:  # noqa: ARG001 - the shape of all wings'
    """Release the job's ports on this node, including those of a prolog that died before it recorded them."""
    directory = ledger.directory(paths)
    if ledger.held_by(directory, node, job_id):
        ledger.release(directory, node, job_id, deadline)

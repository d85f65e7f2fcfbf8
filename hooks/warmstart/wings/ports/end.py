"""What a job's end frees: the ports that it holds on this node. Runs as root; hot path."""

from __future__ import annotations

from warmstart.audit.log import Log
from warmstart.host.deadline import Deadline
from warmstart.paths import NodePaths
from warmstart.wings.ports import events, ledger


def job_over(paths: NodePaths, node: str, job_id: int, audit: Log, deadline: Deadline) -> None:
    """Release the job's ports on this node, including those of a prolog that died before it recorded them."""
    directory = ledger.directory(paths)
    held = ledger.held_by(directory, node, job_id)
    if held:
        audit.emit(events.RENDEZVOUS_RELEASED, ports=held)  # before the release, so the next holder's event comes later
        ledger.release(directory, node, job_id, deadline)

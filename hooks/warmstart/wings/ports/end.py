"""What a job's end frees: the ports that it holds on this node. Runs as root; hot path."""

from __future__ import annotations

from warmstart.audit.log import Log
from warmstart.host.deadline import after
from warmstart.paths import NodePaths
from warmstart.wings.ports import ledger

LEDGER_S = 5.0


def job_over(paths: NodePaths, job_id: int, _audit: Log) -> None:
    """Release the job's ports on this node, including those of a prolog that died before it recorded them."""
    directory = ledger.directory(paths)
    if ledger.held_by(directory, paths.node, job_id):
        ledger.release(directory, paths.node, job_id, after(LEDGER_S))

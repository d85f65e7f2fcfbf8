"""Step `release`: remove what the prolog made for this run, and only that (design, rule 8).

Every path is recomputed from the record's job id and run id. What a job's process still holds is no
reason to drain: it is left, said, and removed by the next run or by hand.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from warmstart import record as records
from warmstart import view
from warmstart.audit import events
from warmstart.audit.journal import Journal
from warmstart.errors import ResourceError, StoreError
from warmstart.host import ports
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import opened_dir
from warmstart.host.trees import remove_tree
from warmstart.host.worker import Worker
from warmstart.images import scratch
from warmstart.paths import NodePaths
from warmstart.record import Record
from warmstart.steps.contract import Context, Outcome

NAME = "release"
SECONDS_FOR_LEDGER = 5.0
SECONDS_FOR_STORE = 5.0


class WorkspaceBusy(ResourceError):
    """Something under the workspace could not be removed."""

    code = "workspace-busy"
    template = "workspace {path} is not all removed: {problem}"
    hint = "which process or mount holds it (fuser -vm, findmnt)? remove the directory by hand afterwards"


class Options(NamedTuple):
    """Release has no options: everything is in the record."""


def run(context: Context, options: Options) -> Outcome:  # noqa: ARG001 - the shape of a step
    """Remove workspace, view and record; give the rendezvous back."""
    record = context.record
    free_ports(context.paths, record.node, record.job_id, context.audit)
    release(context.paths, record, context.deadline)
    try:
        withdraw(context.store, context.policy.paths.store, record)
    except StoreError as error:
        return Outcome("changed", degraded=[error])
    return Outcome("changed")


def release(paths: NodePaths, record: Record, deadline: Deadline) -> None:
    """Do it for any record, e.g. that of an earlier run which no epilog followed."""
    view.remove(paths.view, record)
    if record.workspace:
        _remove_workspace(record, deadline)
    records.forget(paths.state, record.job_id)


def free_ports(paths: NodePaths, node: str, job_id: int, audit: Journal) -> None:
    """Give back a job's ports on this node, also those of a prolog that died before it wrote them down."""
    held = ports.held_by(paths.ports, node, job_id)
    if held:
        audit.emit(events.RENDEZVOUS_RELEASED, ports=held)  # first: the next one's event then comes later
        ports.release(paths.ports, node, job_id, after(SECONDS_FOR_LEDGER))


def withdraw(store: Worker, root: str, record: Record) -> None:
    """Remove what this node told the job's other nodes; a `StoreError` leaves it to `tend`."""
    if record.meeting:
        from warmstart.store import rendezvous

        store.call(rendezvous.withdraw, root, record.meeting, deadline=after(SECONDS_FOR_STORE))


def _remove_workspace(record: Record, deadline: Deadline) -> None:
    try:
        with opened_dir(record.workspace) as root, opened_dir(record.node, root) as node:
            remove_tree(node, record.run_name, deadline)
            scratch.remove_left(node, record.run_id, deadline)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.EROFS:
            return  # nothing was written there, and nothing can be removed
        raise WorkspaceBusy(path=record.run_directory, problem=error.strerror) from error

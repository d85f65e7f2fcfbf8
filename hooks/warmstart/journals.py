"""What hooks that have ended told goes to its readers: reports into the store, then all events into the audit log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from warmstart.audit import pending, sink
from warmstart.audit.fallback import say
from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir, read_small
from warmstart.paths import NodePaths
from warmstart.policy.compiled import Policy
from warmstart.store import reports
from warmstart.store.client import StoreClient
from warmstart.view import LONGEST

STORE_SECONDS = 20.0  # for a node's reports; those that take longer are lost


def move(policy: Policy, paths: NodePaths, node: str, deadline: Deadline) -> None:
    """Leave the reports that a node owes, until the deadline; then move its journals. Raises `AuditUnwritable`."""
    lost: list[str] = []
    with suppress(OSError), opened_dir(paths.journal) as fd:
        if debts := pending.debts(fd):
            with StoreClient.of(policy, "") as store:
                for debt in debts:
                    if not debt.journal or debt.journal.state != "running":
                        lost += _leave(fd, debt, node, store, deadline)
    if lost:  # one line: where the store has no access control lists, each is
        say(lost[0] + (f" (and {len(lost) - 1} more)" if lost[1:] else ""))
    sink.flush(paths.journal, policy.paths.audit, syslog=policy.audit.syslog)


def _leave(directory: int, debt: pending.Debt, node: str, store: StoreClient, deadline: Deadline) -> Iterator[str]:
    """Leave a report; yield what is to be said of one that is lost: the audit log waits for none."""
    problem = ""
    try:
        text = _text(directory, debt)
        name = reports.name_of(debt.job_id, debt.run_id, node)
        store.run(deadline, reports.leave, debt.uid, name, text.decode(errors="surrogateescape"), debt.is_head)
    except Exception as error:  # noqa: BLE001 - a bug, too
        problem = str(error)
    with suppress(FileNotFoundError):  # another process has left it
        os.unlink(debt.name, dir_fd=directory)
        if problem:
            yield f"the report of job {debt.job_id} for its user is lost: {problem}"


def _text(directory: int, debt: pending.Debt) -> bytes:
    of_view = read_small(debt.name, LONGEST, directory)
    return of_view + (pending.shown(directory, debt.journal, debt.uid, debt.job_id) if debt.journal else b"")

"""`flush`: what hooks that have ended told goes to its readers. Runs as root, for no job.

Reports for jobs' users go into the store (`store.reports`), then all events into the audit log. A path unit of systemd
starts it, or cron, and only where something waits (packaging/libexec/flush.in). It also does so while warmstart is off:
what happened is no work on jobs.
"""

from __future__ import annotations

from contextlib import suppress

from warmstart.audit import pending, sink
from warmstart.audit.fallback import say
from warmstart.errors import StoreError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import opened_dir, read_small, unlink_if_there
from warmstart.paths import Installation, NodePaths
from warmstart.policy.compiled import Policy
from warmstart.policy.current import current_policy
from warmstart.store import reports
from warmstart.store.client import StoreClient
from warmstart.view import LONGEST

FAILED = 1
STORE_SECONDS = 20.0  # for a node's reports; those that take longer are lost


def main(prefix: str) -> int:
    """Move the journals of all of this host's nodes. Return the exit status."""
    installation, status = Installation(prefix), 0
    try:
        policy = current_policy(installation).policy
    except WarmstartError as error:
        say(str(error))
        return FAILED
    for node in installation.nodes():
        try:
            flush_node(policy, installation.node(node), node, after(STORE_SECONDS))
        except WarmstartError as error:  # the journals stay
            say(str(error))
            status = FAILED
    return status


def flush_node(policy: Policy, paths: NodePaths, node: str, deadline: Deadline) -> None:
    """Leave the reports that a node owes, until the deadline; then move its journals. Raises `AuditUnwritable`."""
    with suppress(OSError), opened_dir(paths.journal) as fd:
        if debts := pending.debts(fd):
            with StoreClient.of(policy, paths, "") as store:
                for debt in debts:
                    if not debt.journal or debt.journal.state != "running":
                        _leave(fd, debt, node, store, deadline)
    sink.flush(paths.journal, policy.paths.audit, syslog=policy.audit.syslog)


def _leave(directory: int, debt: pending.Debt, node: str, store: StoreClient, deadline: Deadline) -> None:
    """Leave a report. One that the store does not take is lost: the audit log does not wait for the store."""
    with suppress(OSError):  # another flush has left it
        text = read_small(debt.name, LONGEST, directory)
        if debt.journal:
            text += pending.shown(directory, debt.journal)
        name = reports.name_of(debt.job_id, debt.run_id, node)
        try:
            store.run(deadline, reports.leave, debt.uid, name, text.decode(errors="surrogateescape"), debt.is_head)
        except StoreError as error:
            say(str(error))
        unlink_if_there(debt.name, directory)

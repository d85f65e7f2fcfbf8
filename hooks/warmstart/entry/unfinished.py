"""Harvests that epilogs had no time for, finished by maintenance at idle priority (docs/maintenance.md).

Every act may be the last: what is published is subtracted by the next run, and a run is forgotten only once nothing
of it is left on the node.
"""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from warmstart import run_end
from warmstart.audit import events
from warmstart.audit.journal import Journal
from warmstart.entry.maintenance.session import MaintenanceSession
from warmstart.errors import WarmstartError
from warmstart.harvest import deferred
from warmstart.harvest.deferred import DeferredHarvest
from warmstart.host.deadline import after
from warmstart.record import Record
from warmstart.steps import harvest
from warmstart.steps.contract import Context

RUN_SECONDS = 600.0  # for one run's harvest; what is not done then is the next run's


class DeferredOutcome(NamedTuple):
    """What became of the deferred harvests."""

    runs: int  # done with
    failures: list[WarmstartError]  # of profiles, and of whole runs; all are in the audit


def finish_deferred(run: MaintenanceSession, boot_id: str) -> DeferredOutcome:
    """Finish the deferred harvests, the oldest first; what fails keeps nothing else from being done."""
    done, failures = 0, list[WarmstartError]()
    with deferred.exclusive(run.paths.deferred) as mine:
        for waiting in deferred.deferred_harvests(run.paths.deferred) if mine else []:
            try:
                done += _finish(run, waiting, boot_id, failures)
            except WarmstartError as error:
                run.failed(harvest.NAME, error)
                failures.append(error)
    return DeferredOutcome(done, failures)


def _finish(run: MaintenanceSession, waiting: DeferredHarvest, boot_id: str, failures: list[WarmstartError]) -> bool:
    """Harvest one run and remove it; False where there is more to do. Adds what failed of it to `failures`."""
    drop = partial(run_end.drop_deferred, run.paths, waiting, deadline=after(run_end.MAINTENANCE_SECONDS))
    record = waiting.record
    if record is None:
        drop(deferred.DAMAGED, run.audit)
        return True
    audit = run.audit.bind(job_id=record.job_id, uid=record.uid, user=record.user)
    if record.boot_id != boot_id:
        drop(deferred.REBOOTED, audit)
    elif waiting.since < time.time() - deferred.LONGEST_SECONDS:
        drop(deferred.TOO_OLD, audit)
    elif left := _harvest(run, record, audit, failures):
        deferred.defer(run.paths.deferred, record._replace(deferred=left), waiting.since)
        return False
    else:
        run_end.finish_deferred(run.paths, record, after(run_end.MAINTENANCE_SECONDS))
    return True


def _harvest(run: MaintenanceSession, record: Record, audit: Journal, failures: list[WarmstartError]) -> list[str]:
    """Return the profiles that are not done yet."""
    rules = run.policy.harvest
    options = harvest.Options(RUN_SECONDS, rules.max_size, rules.max_entries)
    context = Context(run.policy, run.paths, record, audit.bind(step=harvest.NAME), after(RUN_SECONDS), run.store)
    outcome = harvest.run(context, options)
    for failure in outcome.degraded:
        audit.emit(events.STEP_FAILED, step=harvest.NAME, error=failure.as_audit())
    failures += outcome.degraded
    audit.emit(events.STEP_FINISHED, step=harvest.NAME, outcome=outcome.state, **outcome.detail)
    return outcome.record["deferred"]

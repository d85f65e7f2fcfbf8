"""Observing: a prolog audits what it would do, and touches nothing (docs/operations/rollout.md). Runs as root.

It plans as if it enforced. Wings may look up in the store what the job would find there: read-only, in a process of the
store's owner, within `SECONDS`. Nothing here raises: an observed job's prolog ends with 0.
"""

from __future__ import annotations

import time
import traceback
from typing import NamedTuple, Protocol

from warmstart import plan, wing
from warmstart.audit import events
from warmstart.entry.hook import Hook
from warmstart.errors import UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.images.reference import Reference
from warmstart.policy.match import Grant, parted
from warmstart.request import NOTHING, Request
from warmstart.store.client import StoreClient

STEP = "observe"
SECONDS = 2.0  # for all look-ups of a job


class Planned(NamedTuple):
    """What a job would get."""

    steps: list[str]
    images: list[Reference]
    profiles: list[str]
    left_out: list[str]
    requested: Request = NOTHING


class Observed(NamedTuple):
    """A job that is only observed, while what it would find is looked up."""

    hook: Hook
    grant: Grant
    planned: Planned
    head: bool  # as in the record
    store: StoreClient
    deadline: Deadline


class ObservedPart(Protocol):
    """`observed.py` of a wing."""

    def look(self, observed: Observed) -> None:
        """Audit what the job would find, by events that end with `.observed`."""


def run(hook: Hook, grant: Grant, *, head: bool) -> None:
    """Audit what the prolog would do; `head` as in the record."""
    try:
        _run(hook, grant, head=head)
    except WarmstartError as error:
        hook.audit.emit(events.STEP_FAILED, step=STEP, error=error.as_audit())
    except Exception:  # noqa: BLE001 - a bug; the job is none the wiser
        hook.audit.emit(events.HOOK_CRASHED, traceback=traceback.format_exc())


def _run(hook: Hook, grant: Grant, *, head: bool) -> None:
    """Plan, look up, audit. Raises the errors of a plan that are not the job's fault."""
    started, deadline = time.monotonic(), after(SECONDS)
    try:
        planned, grant = _plan(hook, grant)
    except UserError as error:
        hook.audit.emit(events.JOB_OBSERVED, steps=[], refused=error.as_audit())
        return
    with StoreClient.of(hook.policy, "") as store:
        observed = Observed(hook, grant, planned, head, store, deadline)
        for module in hook.policy.parts("observed"):
            part: ObservedPart = wing.load(module)
            try:
                part.look(observed)
            except WarmstartError as error:
                hook.audit.emit(events.STEP_FAILED, step=STEP, error=error.as_audit())
    hook.audit.emit(
        events.JOB_OBSERVED,
        **plan.as_audit(grant, planned.requested, head=head),
        steps=planned.steps,
        **({"left_out": planned.left_out} if planned.left_out else {}),
        duration_ms=round((time.monotonic() - started) * 1000, 3),
    )


def _plan(hook: Hook, grant: Grant) -> tuple[Planned, Grant]:
    """Return what the job would get, and its grant with what it has asked for."""
    policy, job = hook.policy, hook.job
    requested = plan.request_of(policy, job, grant)
    grant = parted(job, grant, requested.cache)
    steps = [step.name for step in plan.prolog(policy, job, grant, requested)]
    if not steps:
        return Planned([], [], [], [], requested), grant
    planned = Planned(
        [*steps, "environment"],
        plan.images(policy, grant, requested),
        plan.profiles(policy, grant, requested),
        [*plan.left_out(policy, grant, requested)],
        requested,
    )
    return planned, grant

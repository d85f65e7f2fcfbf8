"""Observing: a prolog audits what it would do, and touches nothing (docs/operations/rollout.md). Runs as root.

It plans as if it enforced. Nothing here raises: an observed job's prolog ends with 0.
"""

from __future__ import annotations

import time
import traceback

from warmstart import plan
from warmstart.audit import events
from warmstart.entry.hook import Hook
from warmstart.errors import UserError, WarmstartError
from warmstart.policy.match import Grant, parted

STEP = "observe"


def run(hook: Hook, grant: Grant, *, head: bool) -> None:
    """Audit what the prolog would do; `head` as in the record."""
    try:
        _run(hook, grant, head=head)
    except WarmstartError as error:
        hook.audit.emit(events.STEP_FAILED, step=STEP, error=error.as_audit())
    except Exception:  # noqa: BLE001 - a bug; the job is none the wiser
        hook.audit.emit(events.HOOK_CRASHED, traceback=traceback.format_exc())


def _run(hook: Hook, grant: Grant, *, head: bool) -> None:
    """Plan and audit. Raises the errors of a plan that are not the job's fault."""
    started, policy, job = time.monotonic(), hook.policy, hook.job
    try:
        requested = plan.request_of(policy, job, grant)
        grant = parted(job, grant, requested.cache)
        steps = [step.name for step in plan.prolog(policy, job, grant, requested)]
        left_out = [*plan.left_out(policy, grant, requested)] if steps else []
    except UserError as error:
        hook.audit.emit(events.JOB_OBSERVED, steps=[], refused=error.as_audit())
        return
    hook.audit.emit(
        events.JOB_OBSERVED,
        **plan.as_audit(grant, requested, head=head),
        steps=[*steps, "environment"] if steps else [],
        **({"left_out": left_out} if left_out else {}),
        duration_ms=round((time.monotonic() - started) * 1000, 3),
    )

"""Observing: a prolog logs what it would do, and touches nothing (docs/operations/rollout.md). Runs as root.

It plans as if it enforced. Nothing here raises: an observed job's prolog ends with 0.
"""

from __future__ import annotations

import traceback

from warmstart import plan
from warmstart.entry.hook import Hook
from warmstart.errors import UserError, WarmstartError
from warmstart.policy.match import Grant, parted

STEP = "observe"


def run(hook: Hook, grant: Grant, *, head: bool) -> None:
    """Log what the prolog would do; `head` as in `Run`."""
    hook.audit.say(observed=True)
    try:
        _run(hook, grant, head=head)
    except UserError as error:
        hook.audit.failed(error, STEP, degree="refused")
    except WarmstartError as error:
        hook.audit.failed(error, STEP)
    except Exception:  # noqa: BLE001 - a bug; the job is none the wiser
        hook.audit.say(traceback=traceback.format_exc())


def _run(hook: Hook, grant: Grant, *, head: bool) -> None:
    """Plan, and log it. Raises the errors of a plan."""
    policy, job = hook.policy, hook.job
    requested = plan.request_of(policy, job, grant)
    grant = parted(job, grant, requested.cache)
    hook.audit.say(**plan.as_audit(grant, requested, head=head))
    steps = [step.name for step in plan.prolog(policy, job, grant, requested)]
    if steps:
        hook.audit.say(planned=[*steps, "environment"])
        for name, reason in plan.left_out(policy, grant, requested).items():
            hook.audit.remark(f"is not among the job's profiles: {reason}", name)

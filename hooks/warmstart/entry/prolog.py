"""Slurm's Prolog: prepare the job on this node, as root.

Exit status 1 drains the node and is reserved for `NodeError`; everything else ends with 0 (docs/architecture.md,
rule 2).
"""

from __future__ import annotations

from warmstart import plan, request
from warmstart.entry.hook import OK, REFUSED, Hook, run_hook
from warmstart.errors import StoreError, UserError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.job import Job
from warmstart.lean import TYPE_CHECKING
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant, parted
from warmstart.request import Request
from warmstart.run import state
from warmstart.run.state import Caches, Run, StateFull
from warmstart.slurm.nodes import has_several

if TYPE_CHECKING:
    from typing import Protocol

    from warmstart.runner import Step
    from warmstart.store.client import StoreClient

    class InformsPart(Protocol):
        """`informs.py` of a wing. Hot path where a rule needs it."""

        def informed(self, policy: Policy, job: Job, store: StoreClient, deadline: Deadline) -> Job:
            """Return the job with what the wing knows of it. Raises `StoreError`."""


# The parts of a prolog share one budget, which begins with the hook: what one part takes, the next ones lack. The steps
# leave the reserve for what comes after them: removing what failed, the verdict or undoing all, the reason of a drain.
RESERVE_SECONDS = 15.0
OBSERVE = "observe"  # in place of a step
LOCK_SECONDS = 5.0
SUPERSEDE_SECONDS = 10.0
UNDO_SECONDS = 5.0


def main(prefix: str) -> int:
    """Run the prolog of the job in the environment. Return the exit status."""
    return run_hook("prolog", prefix, _prepare)


def _prepare(hook: Hook) -> str:
    """Return the outcome."""
    try:
        return _prepare_run(hook, hook.deadline(plan.prolog_budget(hook.policy)))
    except StateFull as error:  # nobody can tell the job, which has no view
        from warmstart.audit import syslog

        syslog.say(f"job {hook.job.id} runs without warmstart: {error}")
        raise


def _prepare_run(hook: Hook, end: Deadline) -> str:
    job, paths = hook.job, hook.paths
    with state.job_lock(paths.state, job.id, end.within(LOCK_SECONDS)):
        _supersede(hook, end)
        run = _new_run(hook)
        try:
            _run(hook, run, Deadline(end.at - RESERVE_SECONDS))
        except UserError as error:
            _refuse(hook, run, error)
            return REFUSED
        except Exception:
            _undo(hook, run, end)
            raise
    return OK


def _run(hook: Hook, run: Run, deadline: Deadline) -> None:
    hook = hook._replace(job=_informed(hook, deadline))
    grant = plan.grant(hook.policy, hook.job)
    if grant.observed:
        _observe(hook, grant, head=run.head)
        return
    grant, requested, steps = _planned(hook, grant, head=run.head)
    if notice := plan.notice_of(hook.job, grant):
        _tell_job(hook, run, notice)
        return
    if request.wants_nothing(hook.job):
        from warmstart import view

        _publish(hook, run, view.LEFT_ALONE, "")
        return
    if not steps and (notice := plan.slip_of(hook.policy, hook.job)):
        _tell_job(hook, run, notice)
        return
    if not steps:
        state.forget(hook.paths.state, hook.job.id)
        return
    run = run._replace(
        workspace=hook.policy.paths.workspace,
        own=Caches(read_scopes=list(grant.read_scopes), publish_scope=grant.publish_scope),
    )
    from warmstart.runner import run_prolog  # for most jobs that no rule matches not needed

    state.save(hook.paths.state, run)
    prepared = run_prolog(hook.context(run, deadline), steps)
    run_prolog(prepared.context, [plan.environment(hook.policy, hook.job, grant, requested, prepared)])


def _planned(hook: Hook, grant: Grant, *, head: bool) -> tuple[Grant, Request, list[Step]]:
    """Plan, and log it; `head` as in `Run`. Raises the errors of a plan."""
    requested = plan.request_of(hook.policy, hook.job, grant)
    grant = parted(hook.job, grant, requested.cache)
    hook.audit.say(**plan.as_audit(grant, requested, head=head))
    steps = plan.prolog(hook.policy, hook.job, grant, requested)
    for name, reason in plan.left_out(hook.policy, grant, requested).items():
        hook.audit.remark(f"is not among the job's profiles: {reason}", name)
    return grant, requested, steps


def _observe(hook: Hook, grant: Grant, *, head: bool) -> None:
    """Log what the prolog would do, and touch nothing (docs/operations/rollout.md). Raises nothing."""
    hook.audit.say(observed=True)
    try:
        *_, steps = _planned(hook, grant, head=head)
        if steps:
            hook.audit.say(planned=[*(step.name for step in steps), "environment"])
    except UserError as error:
        hook.audit.failed(error, OBSERVE, degree=REFUSED)
    except WarmstartError as error:
        hook.audit.failed(error, OBSERVE)
    except Exception:  # noqa: BLE001 - a bug; the job is none the wiser
        import traceback

        hook.audit.say(traceback=traceback.format_exc())


def _informed(hook: Hook, deadline: Deadline) -> Job:
    """Return the job with what rules need and slurmd does not tell, as far as this node can know it.

    It asks nobody about what is known already. An attribute stays None, unknown, where nobody tells it.
    """
    job = hook.job
    if job.comment_known and all(getattr(job, name) is not None for name in hook.policy.unseen):
        return job
    for known in hook.policy.wings:
        if known.used and known.informs:
            from warmstart import wing

            part: InformsPart = wing.load(known.informs)
            try:
                job = part.informed(hook.policy, job, hook.store, deadline)
            except StoreError as error:  # rules that need it grant nothing
                hook.audit.failed(error, known.name)
    return job


def _new_run(hook: Hook) -> Run:
    job = hook.job
    return Run(
        run_id=hook.run_id,
        job_id=job.id,
        view_id=job.view_id,
        uid=job.uid,
        gid=job.gid,
        user=job.user,
        account=job.account,
        partition=job.partition,
        cluster=job.cluster,
        node=job.node,
        nodelist=job.nodelist if has_several(job.nodelist) else "",
        restarts=job.restarts,
    )


def _supersede(hook: Hook, end: Deadline) -> None:
    """End an earlier run of this job, without a harvest: the job was requeued, or its epilog never ran.

    Failures are audited and not raised, because the new run has its own directory.
    """
    earlier = hook.earlier_run()
    if earlier is None:
        return
    from warmstart.ending.release import release

    hook.audit.remark("an earlier run of the job was removed: the job was requeued", earlier.run_id)
    release(hook.context(earlier, end.within(SUPERSEDE_SECONDS)), None)


def _refuse(hook: Hook, run: Run, error: UserError) -> None:
    """Publish the job's verdict."""
    from warmstart import view

    cause = error.__cause__
    hook.audit.failed(cause if isinstance(cause, WarmstartError) else error, "prolog", degree=REFUSED)
    # Without its caches: nothing is harvested of them. All else that steps have made is to be removed.
    made = _latest(hook, run)._replace(workspace=hook.policy.paths.workspace, own=run.own)
    text = f"warmstart: {error}\n" + (f"warmstart: {error.hint}\n" if error.hint else "")
    _publish(hook, made, view.VERDICT, text, REFUSED)


def _tell_job(hook: Hook, run: Run, line: str) -> None:
    from warmstart import view

    hook.audit.say(notices=[line])
    _publish(hook, run, view.NOTICE, f"{line}\n")


def _publish(hook: Hook, run: Run, name: str, text: str, outcome: str = OK) -> None:
    """Publish a view with one text for the job's task prolog."""
    from warmstart import view

    state.save(hook.paths.state, run)
    view.publish(hook.paths.view, run, {name: text, view.EVENTS: hook.audit.shown(outcome=outcome)})


def _undo(hook: Hook, run: Run, end: Deadline) -> None:
    """Undo all steps, so that the job finds either all of its preparation or none.

    What wings hold stays until the epilog, since another node may already know of it. Failures are audited and not
    raised: the failure that the caller handles matters more.
    """
    from warmstart.ending.release import release

    made = _latest(hook, run)._replace(workspace=hook.policy.paths.workspace)
    release(hook.context(made, end.within(UNDO_SECONDS)), None, with_wings=False)


def _latest(hook: Hook, run: Run) -> Run:
    """Return the run as the last finished step saved it; `run` if none did."""
    return hook.earlier_run() or run

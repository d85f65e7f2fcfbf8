"""Run the steps of a plan. The kind of a failure decides what happens to the job (docs/architecture.md, rule 2).

| kind     | what becomes of the job                         |
|----------|-------------------------------------------------|
| user     | verdict: later steps are left out               |
| node     | stops; the hook's exit status drains the node   |
| resource | degrades: the job runs cold, with a notice      |
| store    | degrades; a missing image is a verdict          |
| policy   | degrades                                        |

Any other exception is a bug and propagates to `entry`.
"""

from __future__ import annotations

import time

from warmstart.errors import NodeError, UserError, WarmstartError
from warmstart.lean import Callable, Iterable, NamedTuple
from warmstart.run import state
from warmstart.run.state import Run
from warmstart.steps.contract import Context, Outcome


class Step(NamedTuple):
    """One step of a plan, with its options bound."""

    name: str
    run: Callable[[Context], Outcome]
    in_workspace: bool = False  # skipped if the job has no cache
    wing: str = ""  # whose step it is, "" for the core's
    optional: bool = False  # the job has the same without it, only later: no failure of it is a verdict


class Prepared(NamedTuple):
    """The result of a prolog's steps."""

    context: Context
    notices: list[str]  # lines for the job's output: what is cold, and why


def run_prolog(context: Context, steps: Iterable[Step]) -> Prepared:
    """Run the steps in order; save the run after each. Raises `UserError` for a verdict and `NodeError` for a drain."""
    notices: list[str] = []
    for step in steps:
        if step.in_workspace and not context.run.own.path:
            continue
        outcome = _run(context, step)
        notices += [f"warmstart: {line}" for line in outcome.notices]
        failures = [*outcome.degraded]
        if (run := _merged(context.run, step, outcome)) != context.run:
            try:
                state.save(context.paths.state, run)
                context = context._replace(run=run)
            except WarmstartError as error:
                failures.append(error)
        for failure in failures:
            if isinstance(failure, UserError | NodeError):
                raise failure
            if step.name == "image" and not step.optional and context.policy.on_error.image != "run-without":
                raise Refused(failure, step.name) from failure
            notices.append(f"warmstart: {failure}; the job runs without it")
    return Prepared(context, list(dict.fromkeys(notices)))  # several profiles may have the same reason


class Refused(UserError):
    """A failure that is not the job's fault, made a verdict by the policy."""

    code = "job-refused"
    template = "{reason}"
    hint = "tell the administrators"

    def __init__(self, cause: WarmstartError, step: str, also: str = "") -> None:
        """Have the words of the failure that is its cause, and its advice."""
        super().__init__(reason=str(cause), cause=cause.code, step=step, also=also)
        self.hint = cause.hint or self.hint


def _run(context: Context, step: Step) -> Outcome:
    """Run one step, and audit it. An error that it raises is all that it did."""
    started, audit = time.monotonic(), context.audit.bind(step=step.name)
    try:
        outcome = step.run(context._replace(audit=audit))
    except WarmstartError as error:
        outcome = Outcome(degraded=[error])
    finally:
        audit.took(step.name, started)
    for failure in outcome.degraded:
        audit.failed(failure)
    if outcome.detail:
        audit.put("told", step.name, **outcome.detail)
    return outcome


def _merged(run: Run, step: Step, outcome: Outcome) -> Run:
    run = outcome.run or run
    environment = {**run.environment, **outcome.environment}
    topics = list(dict.fromkeys((*run.topics, *outcome.topics)))
    wings = list(dict.fromkeys((*run.wings, *filter(None, (step.wing,)))))
    return run._replace(environment=environment, topics=topics, wings=wings)

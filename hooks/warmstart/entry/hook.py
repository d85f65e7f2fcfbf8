"""Frame of the node's hooks (prolog, epilog, `job-container`): start-up, audit and exit status. Runs as root.

| what happened             | outcome | exit status | node   |
|---------------------------|---------|-------------|--------|
| a `NodeError`             | drained | 1           | drains |
| … of an observed job      | failed  | 0           | fine   |
| any other expected error  | failed  | 0           | fine   |
| a bug                     | crashed | 0           | fine   |
"""

from __future__ import annotations

import os
import sys
import time

from warmstart.audit.log import Log
from warmstart.errors import NodeError, PolicyError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.files import FULL, ensure_path, touch
from warmstart.job import Job, from_environment
from warmstart.lean import TYPE_CHECKING, Callable, NamedTuple
from warmstart.paths import Installation, NodePaths
from warmstart.policy.keys import Policy
from warmstart.run import state
from warmstart.run.state import Run, using_state

if TYPE_CHECKING:
    from warmstart.steps.contract import Context
    from warmstart.store.client import StoreClient


DRAINS = 1
OK, FAILED, REFUSED = "ok", "failed", "refused"  # outcomes of a hook's work


class Hook(NamedTuple):
    """One run of one hook."""

    job: Job
    policy: Policy
    paths: NodePaths
    audit: Log
    run_id: str
    started: float  # in seconds of `time.monotonic()`
    stores: list[StoreClient]  # the one of `store`, once that was asked for

    @property
    def store(self) -> StoreClient:
        """The store's client, of which most jobs that no rule matches need not even the module."""
        if not self.stores:
            from warmstart.store.client import StoreClient

            self.stores.append(StoreClient.of(self.policy, f"{self.job.node}-{self.run_id}"))
        return self.stores[0]

    def deadline(self, seconds: float) -> Deadline:
        """Return the deadline `seconds` after the start of the hook."""
        return Deadline(self.started + seconds)

    def context(self, run: Run, deadline: Deadline) -> Context:
        """Return the context for the steps."""
        from warmstart.steps.contract import Context

        return Context(self.policy, self.paths, run, self.audit, deadline, self.store)

    def earlier_run(self) -> Run | None:
        """Return the run that an earlier hook of the job saved, or None. Raises `RunUnreadable`."""
        try:
            return state.load(self.paths.state, self.job.id)
        except state.RunUnreadable:
            _hide_view(self.paths, self.job.view_id)
            raise


def run_hook(name: str, prefix: str, work: Callable[[Hook], str]) -> int:
    """Run `work` for the job in the environment. Return the exit status; never raises.

    `work` returns the hook's outcome.
    """
    installation, job = Installation(prefix), None
    try:
        os.umask(0o022)
        if installation.is_off:
            _while_off(installation)
            return 0
        job = from_environment(os.environ)
        return _audited(name, installation, job, work)
    except NodeError as error:  # before there was a log
        _say(f"{error} ({error.hint})")
        return 0 if _is_observed(installation, None, job) or installation.is_off else DRAINS
    except WarmstartError as error:
        _say(f"{error} ({error.hint})")
        return 0
    except Exception:  # noqa: BLE001 - a bug never drains a node
        _say(_traceback())
        return 0


def _while_off(installation: Installation) -> None:
    """Hide the view of the job in the environment. What else the run has left is maintenance's, once this is over."""
    job_id = os.environ.get("SLURM_HET_JOB_ID") or os.environ.get("SLURM_JOB_ID", "")
    node = os.environ.get("SLURMD_NODENAME", "")
    if job_id.isdecimal() and node and "/" not in node and not node.startswith("."):
        _hide_view(installation.node(node), job_id)


def _hide_view(paths: NodePaths, job: int | str) -> None:
    from warmstart import view  # most jobs that no rule matches need none

    view.hide(paths.view, job)


def _audited(name: str, installation: Installation, job: Job, work: Callable[[Hook], str]) -> int:
    """Do the hook's work with a log of it. Return the exit status."""
    started, run_id, paths = time.monotonic(), os.urandom(4).hex(), installation.node(job.node)
    _make_directories(paths)
    policy, problem = _policy(installation)
    place, is_copied = (policy.paths.audit, policy.audit.syslog) if policy else ("", False)
    log = Log(place, {**job.as_audit(), "hook": name, "run_id": run_id}, syslog=is_copied)
    log.begin()
    outcome, status = FAILED, 0
    try:
        _tell_of_policy(policy, problem, log)
        if policy is None:
            _hide_view(paths, job.view_id)
            assert problem
            raise problem
        outcome = work(Hook(job, policy, paths, log, run_id, started, []))
    except WarmstartError as error:
        print(f"warmstart: {error} ({error.hint})", file=sys.stderr)  # noqa: T201 - slurmd logs it if the hook fails
        is_off = installation.is_off  # since this hook began
        if isinstance(error, NodeError) and not is_off and not _is_observed(installation, policy, job):
            outcome, status = "drained", DRAINS
            log.failed(error, name, degree="drained")
            _drain_node(policy, job, log, error)
        else:
            log.failed(error, name)
    except Exception:  # noqa: BLE001 - a bug: audited, never a drain
        outcome = "crashed"
        log.say(traceback=_traceback())
        print(_traceback(), file=sys.stderr)  # noqa: T201 - slurmd logs it if the hook fails
    log.finish(outcome=outcome, status=status, duration_ms=round((time.monotonic() - started) * 1000, 3))
    return status


def _policy(installation: Installation) -> tuple[Policy | None, Exception | None]:
    """Return the policy in force, if there is one, and why it is not what the site's files say."""
    from warmstart.policy.current import current_policy

    try:
        current = current_policy(installation, keep=True)
    except Exception as error:  # noqa: BLE001 - a bug is audited, too
        return None, error
    return current.policy, current.problem


def _tell_of_policy(policy: Policy | None, problem: Exception | None, log: Log) -> None:
    """Audit what is wrong with the site's files."""
    if isinstance(problem, PolicyError):
        from warmstart.audit.events import POLICY_REJECTED

        log.emit(POLICY_REJECTED, error=problem.as_audit(), in_force="the last good one" if policy else None)
    if policy and policy.doubt:
        from warmstart.policy import trust

        if doubt := trust.problem(policy):
            log.failed(doubt, "policy")


def _make_directories(paths: NodePaths) -> None:
    """Make the node's directories, those of what lasts where it has room. Raises `FileSystemBroken`, `StateFull`."""
    with using_state(paths.runtime):
        is_first = [ensure_path(paths.state, 0o700), ensure_path(paths.view, 0o711)][0]
    with using_state(paths.root):
        try:
            if ensure_path(paths.root, 0o755) or is_first:
                touch(paths.began)
        except OSError as error:
            if error.errno not in FULL:
                raise


def _is_observed(installation: Installation, policy: Policy | None, job: Job | None) -> bool:
    """Return whether hooks only observe the job; by the last good policy if `policy` could not be loaded."""
    from warmstart import plan
    from warmstart.policy.keys import read

    policy = policy or read(installation.compiled_policy)
    return policy is not None and job is not None and plan.grant(policy, job).observed


def _drain_node(policy: Policy | None, job: Job, log: Log, error: NodeError) -> None:
    from warmstart.audit.events import NODE_DRAINED
    from warmstart.slurm.commands import drain_node

    reason_given = policy is not None and drain_node(
        policy.paths.scontrol, job.node, f"{error} ({error.code})", os.environ.get("SLURM_CONF", "")
    )
    log.emit(NODE_DRAINED, error=error.as_audit(), reason_given=reason_given)


def _say(text: str) -> None:
    """Say what is in no audit."""
    from warmstart.audit.syslog import say

    say(text)


def _traceback() -> str:
    import traceback  # slow to import, and needed only after a bug

    return traceback.format_exc()

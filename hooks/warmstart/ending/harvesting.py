"""What is harvested of a run at its end, by the policy and by what the prolog wrote down. Hot path."""

from __future__ import annotations

from warmstart.host.deadline import Deadline
from warmstart.lean import TYPE_CHECKING, Callable, partial
from warmstart.policy.keys import Policy
from warmstart.profiles import registry
from warmstart.profiles.contract import FILES
from warmstart.run.state import Run

if TYPE_CHECKING:
    from warmstart.steps.harvest import Options

# For all work of an epilog that has no budget in the policy. With the policy's defaults it is below the
# PrologEpilogTimeout that packaging/slurm sets.
EPILOG_SECONDS = 30.0


def epilog_budget(policy: Policy) -> float:
    """Return the seconds that an epilog takes at most. Slurm's timeout has to be longer."""
    return policy.harvest.budget + EPILOG_SECONDS


def to_harvest(policy: Policy, run: Run, slurm_conf: str = "") -> Options | None:
    """Return how a run is harvested at its end, None if it is not. `slurm_conf` is for the query to slurmctld."""
    own, bounds = run.own, policy.harvest
    if not (own.seeded and own.publish_scope and own.path):
        return None
    from warmstart.steps import harvest

    after_success = frozenset(own.seeded) if bounds.only_successful else _after_success(policy, run)
    failure = _outcome_query(policy, run, slurm_conf) if after_success else None
    is_head = run.head and not run.others  # of all its caches, that is
    of_head = frozenset(name for name in own.seeded if not is_head and _is_of_head(policy, name))
    return harvest.Options(bounds.budget, failure, after_success, of_head)


def _is_of_head(policy: Policy, name: str) -> bool:
    """Return whether a job's first node alone is harvested of a profile.

    Of a file that each rank writes as a whole, and of files that the job names, one version can be kept. A profile that
    the policy does not have any more fails on the first node as well.
    """
    profile = registry.find(name, policy.profiles)
    return name == FILES or profile is None or bool(profile.lock)


def _after_success(policy: Policy, run: Run) -> frozenset[str]:
    """Return the run's profiles of which only successful jobs count, but for those that the policy lost."""
    known = {name: registry.find(name, policy.profiles) for name in run.own.seeded}
    return frozenset(name for name, profile in known.items() if profile and profile.only_successful)


def _outcome_query(policy: Policy, run: Run, slurm_conf: str) -> Callable[[Deadline], str]:
    from warmstart.slurm.commands import failure

    return partial(failure, policy.paths.scontrol, run.job_id, slurm_conf)

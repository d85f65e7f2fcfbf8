"""Jobs, put together from the runs of their hooks on all nodes: what `warmstart jobs` lists.

Memory is bounded: at most `MOST_JOBS` are kept, those whose hooks ran last.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from warmstart.audit.runs import DRAINED, EPILOG, OBSERVED, PROLOG, REFUSED, Run
from warmstart.profiles.contract import UNUSED

MOST_JOBS = 20_000
# States, by what a job's hooks did.
RUNNING, DONE, REFUSED_JOB, DRAINED_NODE, CRASHED, OBSERVED_JOB, EXCLUDED = (
    "running", "done", "refused", "drained", "crashed", "observed", "excluded",
)  # fmt: skip
STATES = (RUNNING, DONE, REFUSED_JOB, DRAINED_NODE, CRASHED, OBSERVED_JOB, EXCLUDED)


class Job(NamedTuple):
    """One job; of a job that was requeued, its last run."""

    job: int
    user: str
    cluster: str
    started: str  # `ts` of its first prolog
    state: str
    nodes: tuple[str, ...]
    prolog: float  # seconds, the longest
    epilog: float
    warm: tuple[str, ...]  # profiles
    cold: dict[str, str]  # profile → reason; without those that it did not use, as far as epilogs saw
    images: tuple[str, ...]  # references and digests
    why: str  # it was refused, its node was drained, or it got nothing
    bundles: tuple[str, ...]  # ids of those that it was seeded from
    told: tuple[str, ...] = ()  # what wings say of it

    @property
    def slowest(self) -> float:
        """The seconds of its longest hook."""
        return max(self.prolog, self.epilog)

    def uses_image(self, image: str) -> bool:
        """Return whether it used an image: its reference or digest, or a part of one."""
        return any(image in name for name in self.images)


def of_runs(runs: Iterable[Run]) -> list[Job]:
    """Return the jobs of some runs, in the order in which they started."""
    by_job: dict[tuple[str, int], dict[tuple[str, str], Run]] = {}
    for run in runs:
        if run.job and (run.hook in (PROLOG, EPILOG) or run.set_of) and not run.done_by:
            own = by_job.pop((run.cluster, run.job), {})
            known = own.get((run.node, run.set_of or run.hook))
            if known is None or known.first <= run.first:
                own[run.node, run.set_of or run.hook] = run
            by_job[run.cluster, run.job] = own
            if len(by_job) > MOST_JOBS:
                del by_job[next(iter(by_job))]
    return sorted((_job([*own.values()]) for own in by_job.values()), key=lambda job: (job.started, job.job))


def _job(runs: list[Run]) -> Job:
    ordered = sorted(runs, key=lambda run: (run.hook != PROLOG, run.first))
    prologs = [run for run in ordered if run.hook == PROLOG]
    failures = [failure for run in ordered for failure in run.failures if failure.degree in (REFUSED, DRAINED)]
    excluded = next((run.excluded for run in prologs if run.excluded), "")
    sets = [run for run in ordered if run.set_of]
    began = [*prologs, *sets]
    images = dict.fromkeys(name for run in began for image in run.images for name in (image.reference, image.digest))
    bundles = dict.fromkeys(
        bundle for run in began for seeding in run.seedings.values() for bundle in seeding.from_bundles
    )
    warm, cold = _starts(prologs)
    warm_sets, cold_sets = _starts(sets)
    # A tool runs in a step's image or outside: what began with entries says more than what had none to begin with.
    warm = [*(name for name in warm if name not in cold_sets), *warm_sets]
    uses = {(harvest.profile, harvest.use in UNUSED) for run in ordered for harvest in run.harvests if harvest.use}
    unused = {name for name, is_unused in uses if is_unused and (name, False) not in uses}
    cold = {name: why for name, why in (cold | cold_sets).items() if name not in warm_sets and name not in unused}
    return Job(
        job=ordered[0].job,
        user=next((run.user for run in ordered if run.user), ""),
        cluster=ordered[0].cluster,
        started=ordered[0].first,
        state=_state(ordered, {failure.degree for failure in failures}, excluded),
        nodes=tuple(dict.fromkeys(run.node for run in ordered)),
        prolog=max((run.seconds for run in prologs), default=0.0),
        epilog=max((run.seconds for run in ordered if run.hook == EPILOG), default=0.0),
        warm=tuple(dict.fromkeys(warm)),
        cold=cold,
        images=tuple(filter(None, images)),
        why=failures[0].reason if failures else excluded,
        bundles=tuple(bundles),
        told=tuple(dict.fromkeys(f"{name}: {text}" for run in prologs for _, name, text in run.told)),
    )


def _starts(runs: list[Run]) -> tuple[list[str], dict[str, str]]:
    """Return the profiles that began warm in all of these runs, and why others were cold."""
    cold = {profile: reason for run in runs for profile, reason in run.cold.items()}
    return [profile for run in runs for profile in run.warm if profile not in cold], cold


def _state(runs: list[Run], degrees: set[str], excluded: str) -> str:
    if REFUSED in degrees:
        return REFUSED_JOB
    if DRAINED in degrees:
        return DRAINED_NODE
    if any(run.outcome == "crashed" for run in runs):
        return CRASHED
    if excluded.startswith(OBSERVED):
        return OBSERVED_JOB
    if excluded:
        return EXCLUDED
    began = {run.node: run.first for run in runs if run.hook == PROLOG}
    ended = {run.node for run in runs if run.hook == EPILOG and run.outcome and run.first >= began.get(run.node, "")}
    return DONE if ended >= {run.node for run in runs} else RUNNING

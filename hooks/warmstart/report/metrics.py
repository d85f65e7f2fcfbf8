"""Counters of what the audit log says: the catalogue of metrics, and what each run of a hook adds to it.

Names and units follow Prometheus's conventions. Labels are bounded: profiles, hooks, steps, codes and reasons, never
jobs, users or images; beyond `MOST_LABELS` combinations of one metric the rest is counted as `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable
from typing import NamedTuple

from warmstart.audit import events
from warmstart.audit.runs import EPILOG, FAILED, IMPORTED, PROLOG, REFUSED, Run, kind_of
from warmstart.profiles import contract

MOST_LABELS = 200
MOST_RUNNING = 4096  # jobs; beyond these the first count as if they had used their caches
OTHER = "other"
HOOK_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # seconds
IMPORT_BOUNDS = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)


class Metric(NamedTuple):
    """A counter or, with `bounds`, a histogram. A counter's exposed name ends in `_total`."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds in seconds
    zeros: tuple[tuple[str, ...], ...] = ()  # labels with a value from the start, so that the first increase is seen


HOOK_RUNS = Metric("warmstart_hook_runs", "Finished runs of hooks and of maintenance.", ("hook", "outcome"))
HOOK_CRASHES = Metric(
    "warmstart_hook_crashes",
    "Hooks that a bug ended, or that were killed.",
    ("hook", "reason"),
    zeros=(("prolog", "bug"), ("prolog", "killed"), ("epilog", "bug"), ("epilog", "killed")),
)
HOOK_SECONDS = Metric("warmstart_hook_duration_seconds", "Durations of hooks.", ("hook",), HOOK_BOUNDS)
STEP_FAILURES = Metric("warmstart_step_failures", "Failures of steps, by the error's code.", ("step", "code"))
JOBS_REFUSED = Metric("warmstart_jobs_refused", "Jobs that failed with a verdict.", ("code",))
NODE_DRAINS = Metric("warmstart_node_drains", "Hooks that drained their node.")
IMAGE_USES = Metric("warmstart_image_uses", "Images of jobs, by how a prolog got them.", ("outcome",))
IMPORTS = Metric("warmstart_image_imports", "Imports.", ("outcome",), zeros=(("ok",), ("failed",)))
IMPORT_SECONDS = Metric("warmstart_image_import_duration_seconds", "Durations of imports.", (), IMPORT_BOUNDS)
WAIT_SECONDS = Metric("warmstart_image_wait_duration_seconds", "Waits for others' imports.", (), IMPORT_BOUNDS)
IMAGES_DAMAGED = Metric("warmstart_images_damaged", "Images that were damaged.")
CACHE_STARTS = Metric(
    "warmstart_cache_starts",
    "Caches that jobs used, and began with entries (warm) or without (cold).",
    ("profile", "result"),
)
CACHE_USES = Metric("warmstart_cache_uses", "Caches of jobs that ended, by use.", ("profile", "use"))
CACHE_MISSES = Metric("warmstart_cache_misses", "Caches that jobs used, and began cold, by reason.", ("reason",))
HARVESTED = Metric("warmstart_entries_harvested", "Entries that were published.", ("profile",))
REJECTED = Metric("warmstart_entries_rejected", "Entries that were not taken.", ("reason",))
BUNDLES_QUARANTINED = Metric("warmstart_bundles_quarantined", "Bundles that were damaged.")
HARVESTS_DROPPED = Metric("warmstart_harvests_dropped", "Deferred harvests that were lost.")
BUNDLES_DROPPED = Metric("warmstart_bundles_dropped", "Spooled bundles that were lost.")

CATALOGUE = tuple(value for value in globals().values() if isinstance(value, Metric))
_BY_NAME = {metric.name: metric for metric in CATALOGUE}

# Counters of events, one by one.
_COUNTED: dict[str, Metric] = {
    events.NODE_DRAINED: NODE_DRAINS,
    events.IMAGE_DAMAGED: IMAGES_DAMAGED,
    events.BUNDLE_QUARANTINED: BUNDLES_QUARANTINED,
    events.HARVEST_DROPPED: HARVESTS_DROPPED,
    events.BUNDLE_DROPPED: BUNDLES_DROPPED,
}


class Sample(NamedTuple):
    """A counter's value for one combination of labels."""

    metric: str
    labels: list[str]
    value: float


class Distribution(NamedTuple):
    """A histogram for one combination of labels: observations by class, the last without an upper bound."""

    metric: str
    labels: list[str]
    counts: list[int]
    total: float  # seconds


class Start(NamedTuple):
    """A cache of a job that began."""

    profile: str
    why: str  # it was cold; "" of a warm one


class Running(NamedTuple):
    """A job on a node, and its caches of which nobody has seen yet whether it used them."""

    cluster: str
    node: str
    job: int
    starts: list[Start]


class SavedCounters(NamedTuple):
    """All counters, in the form in which they are kept."""

    samples: list[Sample]
    distributions: list[Distribution]
    running: list[Running]


class Counters:
    """Counters that runs add to."""

    def __init__(self, saved: SavedCounters | None = None) -> None:
        """Begin with what an earlier `save` returned, less what the catalogue does not have any more."""
        self._values: dict[str, dict[tuple[str, ...], float]] = {metric.name: {} for metric in CATALOGUE}
        self._classes: dict[str, dict[tuple[str, ...], list[int]]] = {metric.name: {} for metric in CATALOGUE}
        for sample in saved.samples if saved else ():
            if sample.metric in _BY_NAME and len(sample.labels) == len(_BY_NAME[sample.metric].labels):
                self._values[sample.metric][tuple(sample.labels)] = sample.value
        for kept in saved.distributions if saved else ():
            metric = _BY_NAME.get(kept.metric)
            if metric and (len(kept.labels), len(kept.counts)) == (len(metric.labels), len(metric.bounds) + 1):
                self._classes[metric.name][tuple(kept.labels)] = list(kept.counts)
                self._values[metric.name][tuple(kept.labels)] = kept.total
        self._running = {one[:3]: one.starts for one in saved.running} if saved else {}

    def add(self, metric: Metric, *labels: str, value: float = 1) -> None:
        """Add to a counter."""
        counts = self._values[metric.name]
        key = _bounded(labels, counts, len(counts))
        counts[key] = counts.get(key, 0.0) + value

    def observe(self, metric: Metric, *labels: str, seconds: float) -> None:
        """Add an observation to a histogram."""
        self.add(metric, *labels, value=seconds)
        classes = self._classes[metric.name]
        counts = classes.setdefault(_bounded(labels, classes, len(classes)), [0] * (len(metric.bounds) + 1))
        counts[bisect_left(metric.bounds, seconds)] += 1

    def add_run(self, run: Run) -> None:
        """Add what a run of a hook did."""
        for event in run.counts.keys() & _COUNTED.keys():
            self.add(_COUNTED[event], value=run.counts[event])
        if run.counts[events.HOOK_FINISHED]:
            self.add(HOOK_RUNS, run.hook, run.ended)
            self.observe(HOOK_SECONDS, run.hook, seconds=run.seconds)
        for reason in run.crashes:
            self.add(HOOK_CRASHES, run.hook, reason or "bug")
        for failure in run.failures:
            if failure.degree == REFUSED:
                self.add(JOBS_REFUSED, failure.code)
            elif failure.degree == FAILED:
                self.add(STEP_FAILURES, failure.step, failure.code)
        self._add_images(run)
        self._add_starts(run)
        self._add_entries(run)

    def _add_images(self, run: Run) -> None:
        self.add(IMPORTS, "failed", value=run.counts[events.IMAGE_IMPORT_FAILED])
        for image in run.images:
            if run.hook == PROLOG:
                self.add(IMAGE_USES, image.how)
                if image.waited:
                    self.observe(WAIT_SECONDS, seconds=image.waited)
            if image.how == IMPORTED:
                self.add(IMPORTS, "ok")
                self.observe(IMPORT_SECONDS, seconds=max(image.seconds - image.waited, 0.0))

    def _add_starts(self, run: Run) -> None:
        began = [Start(profile, "") for profile in run.warm]
        began += [Start(profile, kind_of(reason)) for profile, reason in run.cold.items()]
        job = (run.cluster, run.node, run.job)
        if starts := [*self._running.pop(job, []), *began]:
            self._running[job] = self._settled(starts, run)
            if not self._running[job]:
                del self._running[job]
        if len(self._running) > MOST_RUNNING:
            self._count_starts(self._running.pop(next(iter(self._running))))

    def _settled(self, starts: list[Start], run: Run) -> list[Start]:
        """Count the caches that a job used, as far as a run of its hooks tells; return those of which none does."""
        uses = {harvest.profile: harvest.use for harvest in run.harvests if harvest.use}
        self._count_starts(
            start for start in starts if uses.get(start.profile, contract.UNTOUCHED) not in contract.UNUSED
        )
        left = [start for start in starts if start.profile not in uses]
        if run.hook == EPILOG and run.ended and not run.counts[events.HARVEST_DEFERRED]:
            self._count_starts(left)  # nobody will see
            return []
        return left

    def _count_starts(self, starts: Iterable[Start]) -> None:
        for profile, why in starts:
            self.add(CACHE_STARTS, profile, "cold" if why else "warm")
            if why:
                self.add(CACHE_MISSES, why)

    def _add_entries(self, run: Run) -> None:
        for harvest in run.harvests:
            self.add(HARVESTED, harvest.profile, value=harvest.entries)
            if harvest.use in contract.USES:
                self.add(CACHE_USES, harvest.profile, harvest.use)
        for reasons in run.rejected.values():
            for reason, entries in reasons.items():
                self.add(REJECTED, reason, value=entries)

    def samples(self, metric: Metric) -> list[Sample]:
        """Return a counter's values; one without labels has a value from the start."""
        zeros = metric.zeros if metric.labels else ((),)
        counts = {**dict.fromkeys(zeros, 0.0), **self._values[metric.name]}
        return [Sample(metric.name, [*labels], value) for labels, value in sorted(counts.items())]

    def distributions(self, metric: Metric) -> list[Distribution]:
        """Return a histogram's values."""
        totals = self._values[metric.name]
        classes = self._classes[metric.name]
        return [
            Distribution(metric.name, [*labels], counts, totals[labels]) for labels, counts in sorted(classes.items())
        ]

    def save(self) -> SavedCounters:
        """Return all of it."""
        counters = [metric for metric in CATALOGUE if not metric.bounds]
        histograms = [metric for metric in CATALOGUE if metric.bounds]
        return SavedCounters(
            [sample for metric in counters for sample in self.samples(metric)],
            [distribution for metric in histograms for distribution in self.distributions(metric)],
            [Running(*job, starts) for job, starts in self._running.items()],
        )


def _bounded(labels: tuple[str, ...], known: Container[tuple[str, ...]], count: int) -> tuple[str, ...]:
    return labels if labels in known or count < MOST_LABELS else tuple(OTHER for _ in labels)

"""Counters of what the audit log says: the catalogue of metrics, and how each event adds to it.

Names and units follow Prometheus's conventions. Labels are bounded: profiles, hooks, steps, codes and reasons, never
jobs, users or images; beyond `MOST_LABELS` combinations of one metric the rest is counted as `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from warmstart.audit import events, values
from warmstart.audit.line import Line
from warmstart.audit.runs import IMAGE_EVENTS, SAMPLED
from warmstart.profiles import contract

MOST_LABELS = 200
OTHER = "other"
PROLOG = "prolog"
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
JOBS_REQUEUED = Metric("warmstart_jobs_requeued", "Jobs that were requeued because their image was missing.")
NODE_DRAINS = Metric("warmstart_node_drains", "Hooks that drained their node.")
STATE_FULL = Metric("warmstart_state_full", "Hooks that found the disk of warmstart's state full.")
POLICY_ERRORS = Metric("warmstart_policy_errors", "Hooks that found the policy's files wrong.")
IMAGE_USES = Metric("warmstart_image_uses", "Images of jobs, by how a prolog got them.", ("outcome",))
IMPORTS = Metric("warmstart_image_imports", "Imports.", ("outcome",), zeros=(("ok",), ("failed",)))
IMPORT_SECONDS = Metric("warmstart_image_import_duration_seconds", "Durations of imports.", (), IMPORT_BOUNDS)
WAIT_SECONDS = Metric("warmstart_image_wait_duration_seconds", "Waits for others' imports.", (), IMPORT_BOUNDS)
IMPORTED_BYTES = Metric("warmstart_image_imported_bytes", "Bytes of images that were imported.")
IMAGES_EVICTED = Metric("warmstart_images_evicted", "Images that were evicted.")
IMAGES_QUARANTINED = Metric("warmstart_images_quarantined", "Images that were damaged.")
CACHE_STARTS = Metric(
    "warmstart_cache_starts", "Caches of jobs that began with entries (warm) or without (cold).", ("profile", "result")
)
CACHE_USES = Metric("warmstart_cache_uses", "Caches of jobs that ended, by use.", ("profile", "use"))
CACHE_MISSES = Metric("warmstart_cache_misses", "Caches that began cold, by reason.", ("reason",))
JOBS_MADE_COLD = Metric(
    "warmstart_jobs_made_cold", "Jobs on several nodes that began cold for what one of these lacked.", ("reason",)
)
SEEDED = Metric("warmstart_entries_seeded", "Entries that jobs were seeded with.", ("profile",))
FETCHED_BYTES = Metric("warmstart_bundle_fetched_bytes", "Bytes of bundles that nodes fetched from the store.")
COMPARED = Metric(
    "warmstart_entries_compared",
    "Entries that jobs built again, by what is published under their names: equal, different or incomparable.",
    ("profile", "result"),
)
TREES_SHOWN = Metric(
    "warmstart_trees_shown",
    "Trees of jobs, by how they were read on a node (copy, itself), and why the tree itself was.",
    ("way", "reason"),
)
TREE_PACKS = Metric("warmstart_tree_packs", "Attempts to pack a tree.", ("outcome",), zeros=(("ok",), ("failed",)))
TREE_PACKED_BYTES = Metric("warmstart_tree_packed_bytes", "Bytes of packed trees that were published.")
HARVESTED = Metric("warmstart_entries_harvested", "Entries that were published.", ("profile",))
REJECTED = Metric("warmstart_entries_rejected", "Entries that were not taken.", ("reason",))
PUBLISHED_BYTES = Metric("warmstart_bundle_published_bytes", "Bytes of bundles that were published.", ("profile",))
BUNDLES_REMOVED = Metric("warmstart_bundles_removed", "Bundles that maintenance removed.")
BUNDLES_QUARANTINED = Metric("warmstart_bundles_quarantined", "Bundles that were damaged.")
DEFERRED = Metric("warmstart_harvests_deferred", "Harvests that epilogs had no time for.")
HARVESTS_DROPPED = Metric("warmstart_harvests_dropped", "Deferred harvests that were lost.")
SPOOLED = Metric("warmstart_bundles_spooled", "Bundles that the store did not take at once.")
BUNDLES_DROPPED = Metric("warmstart_bundles_dropped", "Spooled bundles that were lost.")

CATALOGUE = tuple(value for value in globals().values() if isinstance(value, Metric))


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


class SavedCounters(NamedTuple):
    """All counters, in the form in which they are kept."""

    samples: list[Sample]
    distributions: list[Distribution]


class Counters:
    """Counters that events add to."""

    def __init__(self, saved: SavedCounters | None = None) -> None:
        """Begin with what an earlier `save` returned, less what the catalogue does not have any more."""
        self._values: dict[str, dict[tuple[str, ...], float]] = {metric.name: {} for metric in CATALOGUE}
        self._classes: dict[str, dict[tuple[str, ...], list[int]]] = {metric.name: {} for metric in CATALOGUE}
        known = {metric.name: metric for metric in CATALOGUE}
        for sample in saved.samples if saved else ():
            if sample.metric in known and len(sample.labels) == len(known[sample.metric].labels):
                self._values[sample.metric][tuple(sample.labels)] = sample.value
        for kept in saved.distributions if saved else ():
            metric = known.get(kept.metric)
            if metric and (len(kept.labels), len(kept.counts)) == (len(metric.labels), len(metric.bounds) + 1):
                self._classes[metric.name][tuple(kept.labels)] = list(kept.counts)
                self._values[metric.name][tuple(kept.labels)] = kept.total

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

    def fold(self, lines: Iterable[Line]) -> None:
        """Add audit events."""
        for line in lines:
            if count := _FOLD.get(events.Event(values.text(line, "event"))):
                count(self, line)

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
        )


def _bounded(labels: tuple[str, ...], known: Container[tuple[str, ...]], count: int) -> tuple[str, ...]:
    return labels if labels in known or count < MOST_LABELS else tuple(OTHER for _ in labels)


def _hook_finished(counters: Counters, line: Line) -> None:
    hook = values.text(line, "hook")
    counters.add(HOOK_RUNS, hook, values.text(line, "outcome"))
    counters.observe(HOOK_SECONDS, hook, seconds=values.number(line, "duration_ms") / 1000)


def _hook_crashed(counters: Counters, line: Line) -> None:
    counters.add(HOOK_CRASHES, values.text(line, "hook"), values.text(line, "reason") or "bug")


def _step_finished(counters: Counters, line: Line) -> None:
    for profile in values.texts(line, "warm"):
        counters.add(CACHE_STARTS, profile, "warm")
    for profile, reason in values.words(line, "cold").items():
        if reason == SAMPLED:
            continue
        counters.add(CACHE_STARTS, profile, "cold")
        counters.add(CACHE_MISSES, _kind(reason))


def _harvested(counters: Counters, line: Line) -> None:
    profile, use = values.text(line, "profile"), values.text(line, "use")
    counters.add(HARVESTED, profile, value=values.number(line, "entries"))
    if use in contract.USES:
        counters.add(CACHE_USES, profile, use)


def _agreed(counters: Counters, line: Line) -> None:
    """Count a job once for each reason: on its first node."""
    cold = values.mapping(line, "cold")
    reasons = {_kind(values.text(values.mapping(cold, profile), "reason")) for profile in cold}
    for reason in sorted(reasons) if line.get("head") is True else ():
        counters.add(JOBS_MADE_COLD, reason)


def _kind(reason: str) -> str:
    """Return a reason without what may follow it, of which there may be many."""
    return reason.partition(":")[0]


def _image(outcome: str) -> Callable[[Counters, Line], None]:
    def count(counters: Counters, line: Line) -> None:
        took, waited = values.number(line, "duration_ms") / 1000, values.number(line, "waited_ms") / 1000
        if values.text(line, "hook") == PROLOG:
            counters.add(IMAGE_USES, outcome)
            if waited:
                counters.observe(WAIT_SECONDS, seconds=waited)
        if outcome == "imported":
            counters.add(IMPORTS, "ok")
            counters.observe(IMPORT_SECONDS, seconds=max(took - waited, 0.0))
            counters.add(IMPORTED_BYTES, value=values.number(line, "bytes"))

    return count


def _import_failed(counters: Counters, line: Line) -> None:
    counters.add(IMPORTS, "failed")
    counters.add(STEP_FAILURES, "import", _code(line))


def _seeded(counters: Counters, line: Line) -> None:
    counters.add(SEEDED, values.text(line, "profile"), value=values.number(line, "entries"))
    counters.add(FETCHED_BYTES, value=values.number(line, "fetched_bytes"))


def _tree_shown(counters: Counters, line: Line) -> None:
    counters.add(TREES_SHOWN, values.text(line, "way"), values.text(line, "reason"))
    counters.add(FETCHED_BYTES, value=values.number(line, "fetched_bytes"))


def _tree_packed(counters: Counters, line: Line) -> None:
    counters.add(TREE_PACKS, "ok")
    counters.add(TREE_PACKED_BYTES, value=values.number(line, "size"))


def _tree_pack_failed(counters: Counters, line: Line) -> None:
    counters.add(TREE_PACKS, "failed")
    counters.add(STEP_FAILURES, "packs", _code(line))


def _compared(counters: Counters, line: Line) -> None:
    for result in ("equal", "different", "incomparable"):
        counters.add(COMPARED, values.text(line, "profile"), result, value=values.number(line, result))


def _rejected(counters: Counters, line: Line) -> None:
    for reason, times in values.counts(line, "reasons").items():
        counters.add(REJECTED, reason, value=times)


def _published(counters: Counters, line: Line) -> None:
    counters.add(PUBLISHED_BYTES, values.text(line, "profile"), value=values.number(line, "size"))
    if "entries" in line:  # spooled or handed in: its harvest had published nothing
        counters.add(HARVESTED, values.text(line, "profile"), value=values.number(line, "entries"))


def _each(metric: Metric, *, amount: str = "") -> Callable[[Counters, Line], None]:
    """Count each event by its labels, as one or as the number that the key `amount` has."""

    def count(counters: Counters, line: Line) -> None:
        labels = [_code(line) if label == "code" else values.text(line, label) for label in metric.labels]
        counters.add(metric, *labels, value=values.number(line, amount) if amount else 1)

    return count


def _code(line: Line) -> str:
    return values.text(values.mapping(line, "error"), "code")


_FOLD: dict[events.Event, Callable[[Counters, Line], None]] = {
    events.HOOK_FINISHED: _hook_finished,
    events.HOOK_CRASHED: _hook_crashed,
    events.STEP_FINISHED: _step_finished,
    events.STEP_FAILED: _each(STEP_FAILURES),
    events.JOB_REFUSED: _each(JOBS_REFUSED),
    events.JOB_REQUEUED: _each(JOBS_REQUEUED),
    events.NODE_DRAINED: _each(NODE_DRAINS),
    events.STATE_FULL: _each(STATE_FULL),
    events.POLICY_REJECTED: _each(POLICY_ERRORS),
    **{event: _image(outcome) for event, outcome in IMAGE_EVENTS.items()},
    events.IMAGE_IMPORT_FAILED: _import_failed,
    events.IMAGE_EVICTED: _each(IMAGES_EVICTED),
    events.IMAGE_QUARANTINED: _each(IMAGES_QUARANTINED),
    events.CACHE_SEEDED: _seeded,
    events.CACHE_AGREED: _agreed,
    events.TREE_SHOWN: _tree_shown,
    events.TREE_PACKED: _tree_packed,
    events.TREE_PACK_FAILED: _tree_pack_failed,
    events.CACHE_COMPARED: _compared,
    events.CACHE_HARVESTED: _harvested,
    events.ENTRY_REJECTED: _rejected,
    events.BUNDLE_PUBLISHED: _published,
    events.BUNDLE_REMOVED: _each(BUNDLES_REMOVED),
    events.BUNDLE_QUARANTINED: _each(BUNDLES_QUARANTINED),
    events.HARVEST_DEFERRED: _each(DEFERRED),
    events.HARVEST_DROPPED: _each(HARVESTS_DROPPED),
    events.BUNDLE_SPOOLED: _each(SPOOLED),
    events.BUNDLE_DROPPED: _each(BUNDLES_DROPPED),
}

"""Counters of what the audit log says: the catalogue of metrics, and what each line adds to it.

The report adds up the same ones. Names and units follow Prometheus's conventions. Labels are profiles, hooks, steps,
codes and reasons, of which there are few; never jobs, users or images.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from warmstart.audit import events
from warmstart.audit.line import Line
from warmstart.audit.values import count, counts, seconds, text
from warmstart.profiles import contract
from warmstart.report.lines import IMPORTED, KILLED, PROLOG, Hook, Item, act_failure, import_s, what_failed, why_cold

HOOK_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # seconds
IMPORT_BOUNDS = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)


class Metric(NamedTuple):
    """A counter or, with `bounds`, a histogram. A counter's exposed name ends in `_total`."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds in seconds
    zeros: tuple[tuple[str, ...], ...] = ()  # labels with a value from the start, so that the first increase is seen

    @property
    def length(self) -> int:
        """How many values a sample has."""
        return len(self.bounds) + 2 if self.bounds else 1


HOOK_RUNS = Metric(
    "warmstart_hook_runs",
    "Runs of hooks and of maintenance.",
    ("hook", "outcome"),
    zeros=tuple((hook, outcome) for hook in ("prolog", "epilog") for outcome in ("crashed", "drained", "killed")),
)
HOOK_SECONDS = Metric("warmstart_hook_duration_seconds", "Durations of hooks.", ("hook",), HOOK_BOUNDS)
FAILURES = Metric("warmstart_step_failures", "Failures, by what they cost, or where.", ("step", "code"))
IMAGE_USES = Metric("warmstart_image_uses", "Images of jobs, by how a prolog got them.", ("outcome",))
IMPORTS = Metric("warmstart_image_imports", "Imports.", ("outcome",), zeros=(("ok",), ("failed",)))
IMPORT_SECONDS = Metric("warmstart_image_import_duration_seconds", "Durations of imports.", (), IMPORT_BOUNDS)
WAIT_SECONDS = Metric("warmstart_image_wait_duration_seconds", "Waits for others' imports.", (), IMPORT_BOUNDS)
CACHE_STARTS = Metric("warmstart_cache_starts", "Caches that began warm, or why cold.", ("profile", "result"))
CACHE_USES = Metric("warmstart_cache_uses", "Caches of jobs that ended, by use.", ("profile", "use"))
HARVESTED = Metric("warmstart_entries_harvested", "Entries that were published.", ("profile",))
REJECTED = Metric("warmstart_entries_rejected", "Entries that were not taken.", ("reason",))
DAMAGED = Metric(
    "warmstart_damaged", "Files of the store that were damaged.", ("what",), zeros=(("image",), ("bundle",))
)
LOST = Metric("warmstart_lost", "What jobs compiled, and was lost.", ("what",), zeros=(("harvest",),))

CATALOGUE = tuple(value for value in globals().values() if isinstance(value, Metric))
# Acts that are counted one by one.
_ACTS: dict[object, tuple[Metric, str]] = {
    events.IMAGE_DAMAGED: (DAMAGED, "image"),
    events.BUNDLE_DAMAGED: (DAMAGED, "bundle"),
    events.HARVEST_DROPPED: (LOST, "harvest"),
    events.IMAGE_IMPORT_FAILED: (IMPORTS, "failed"),
}


class Sample(NamedTuple):
    """A metric's value for one combination of labels.

    `values` is the one of a counter; of a histogram the number of observations in each class, the last without an upper
    bound, and then their sum in seconds.
    """

    metric: str
    labels: list[str]
    values: list[float]


class Counters:
    """Counters that lines and runs of programs add to."""

    def __init__(self, kept: Iterable[Sample] = ()) -> None:
        """Begin with earlier `samples`, less what the catalogue does not have any more."""
        self._found: dict[str, dict[tuple[str, ...], list[float]]] = {
            metric.name: {labels: [0.0] * metric.length for labels in metric.zeros} for metric in CATALOGUE
        }
        lengths = {metric.name: (len(metric.labels), metric.length) for metric in CATALOGUE}
        for sample in kept:
            if lengths.get(sample.metric) == (len(sample.labels), len(sample.values)):
                self._found[sample.metric][tuple(sample.labels)] = sample.values

    def __getitem__(self, metric: Metric) -> Mapping[tuple[str, ...], list[float]]:
        """Return the values of a metric's samples, by their labels."""
        return self._found[metric.name]

    def samples(self, metric: Metric) -> list[Sample]:
        """Return a metric's samples."""
        return [Sample(metric.name, [*labels], values) for labels, values in sorted(self[metric].items())]

    def _values(self, metric: Metric, labels: tuple[str, ...]) -> list[float]:
        return self._found[metric.name].setdefault(labels, [0.0] * metric.length)

    def add(self, metric: Metric, *labels: str, value: float = 1) -> None:
        """Add to a counter."""
        self._values(metric, labels)[0] += value

    def observe(self, metric: Metric, *labels: str, seconds: float) -> None:
        """Add an observation to a histogram."""
        values = self._values(metric, labels)
        values[bisect_left(metric.bounds, seconds)] += 1
        values[-1] += seconds

    def add_line(self, line: Line) -> None:
        """Add an act that has a line of its own."""
        if act := _ACTS.get(line.get("event")):
            self.add(*act)
        if failure := act_failure(line):
            self._add_failure(failure)
        elif line.get("event") == events.IMAGE_IMPORTED:
            self._add_import(line)

    def add_hook(self, hook: Hook) -> None:
        """Add what a run of a program did."""
        if not hook.done_by:
            self.add(HOOK_RUNS, hook.name, hook.outcome)
            if hook.outcome != KILLED:
                self.observe(HOOK_SECONDS, hook.name, seconds=hook.seconds)
        for failure in hook.failures:
            self._add_failure(failure)
        for image in hook.images:
            if text(image, "how") == IMPORTED:
                self._add_import(image)
            if hook.name == PROLOG:
                self.add(IMAGE_USES, text(image, "how"))
                if waited := seconds(image, "waited_ms"):
                    self.observe(WAIT_SECONDS, seconds=waited)
        self._add_caches(hook)

    def _add_failure(self, failure: Item) -> None:
        self.add(FAILURES, what_failed(failure), text(failure, "code"))

    def _add_import(self, image: Item) -> None:
        self.add(IMPORTS, "ok")
        self.observe(IMPORT_SECONDS, seconds=import_s(image))

    def _add_caches(self, hook: Hook) -> None:
        for profile, start in hook.starts:
            self.add(CACHE_STARTS, profile, why_cold(start)[0] or "warm")
        for profile, harvest in hook.harvests:
            self.add(HARVESTED, profile, value=count(harvest, "entries"))
            if (use := text(harvest, "use")) in contract.USES:
                self.add(CACHE_USES, profile, use)
            for reason, entries in counts(harvest, "rejected").items():
                self.add(REJECTED, reason, value=entries)

"""A summary of a log: what `warmstart report` shows, as numbers. Most are those of the metrics.

**Time saved on imports**: on the first node of each job, an image that was in the store saves its size at the mean rate
of the imports in the log, less the time that the hook took. A hook that waited for an import saves nothing: the job
would have imported at the same time.

**Hits** are what epilogs have seen (`use`; docs/reference/profiles.md, Seen hits): a cache that was seeded and to which
nothing was added is a hit if the tool left a trace of its use, else nobody knows. What was not used at all is neither
hit nor miss, nor is what a job went around. A profile of which nobody ever sees a hit has no rate.

**Cold** are caches that began so, but for those that their jobs did not use, as epilogs have seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from warmstart.audit import events, values
from warmstart.audit.line import Line
from warmstart.profiles import contract
from warmstart.report import metrics
from warmstart.report.lines import IMPORTED, PROLOG, Hook, Hooks, why_cold
from warmstart.report.metrics import Counters, Metric

TOP = 10
OTHERS = "(others)"
IMPORT, WAIT = "(import of an image)", "(wait for an image)"
_FOUND = frozenset({"reused", "stale"})
_BAD = frozenset({"failed", "drained", "crashed", "killed"})  # outcomes


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 user`, `2,000 users`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


class Uses(NamedTuple):
    """What jobs did with caches, as far as their epilogs could tell."""

    name: str
    hit: int = 0
    built: int = 0
    unknown: int = 0
    untouched: int = 0
    around: int = 0

    @property
    def is_seen(self) -> bool:
        """Whether hits would be seen: of a profile whose tool leaves no trace, only builds are."""
        return bool(self.hit or not self.unknown)

    @property
    def percent(self) -> str:
        """The share of hits in hits and builds."""
        known = self.hit + self.built
        return f"{100 * self.hit / known:.1f}%" if known and self.is_seen else "-"


class Times(NamedTuple):
    """How long something took, in seconds; the shares as `histogram_quantile` estimates them."""

    what: str
    number: int
    failed: int
    p50: float
    p95: float
    p99: float


class Summary(NamedTuple):
    """What the lines of a time add up to."""

    first: str  # `ts` of the first and last line
    last: str
    clusters: tuple[str, ...]
    runs: int
    jobs: int  # starts of jobs: a requeued job counts twice
    users: int
    nodes: int
    profiles: tuple[Uses, ...]
    by_user: tuple[Uses, ...]
    cold: dict[str, int]  # "user: reason" → caches that began cold on a node
    imports: int
    imported_bytes: int
    avoided: int  # uses of images by jobs on every node, less the imports
    saved: float | None  # seconds, on imports; None if no import in the log tells it
    entries: int  # that were published
    published_bytes: int  # of bundles
    failures: dict[str, int]  # by "refused: code", "drained: code", "step: code", or "event: code" of an act
    times: tuple[Times, ...]  # of hooks, imports, and waits for others' imports

    @property
    def caches(self) -> Uses:
        """All profiles of which hits are seen together."""
        seen = [uses for uses in self.profiles if uses.is_seen]
        return Uses("", *(sum(getattr(uses, name) for uses in seen) for name in Uses._fields[1:]))


def summarize(lines: Iterable[Line], now: float) -> Summary:
    """Add up a log, of which the last hooks may go on at `now`, in epoch seconds."""
    adding = Adding()
    for line in lines:
        adding.add(line)
    return adding.result(now)


class Adding:
    """The metrics, and what has no place in them: users and bytes. Memory does not grow with the number of lines."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._counters, self._hooks = Counters(), Hooks()
        self._first = self._last = ""
        self._clusters, self._nodes, self._users = (set[str]() for _ in range(3))
        self._jobs = self._published_bytes = self._imported_bytes = 0
        self._found_bytes = 0  # of images that first nodes found in the store
        self._finding = 0.0  # seconds, of these
        self._cold = Counter[str]()
        self._uses = Counter[tuple[str, ...]]()  # user, use
        self._running: dict[tuple[str, int, str], str] = {}  # cold caches: node, job, profile → their name in `cold`

    def add(self, line: Line) -> None:
        """Add a line, in the order of its log."""
        self._counters.add_line(line)
        at = values.text(line, "ts")
        self._first = min(self._first or at, at)
        self._last = max(self._last, at)
        self._nodes.add(values.text(line, "node"))
        if cluster := values.text(line, "cluster"):
            self._clusters.add(cluster)
        if line.get("event") == events.IMAGE_IMPORTED:
            self._imported_bytes += values.count(line, "bytes")
        for hook in self._hooks.add(line):
            self._add_hook(hook)

    def _add_hook(self, hook: Hook) -> None:
        self._counters.add_hook(hook)
        begins_job = hook.name == PROLOG and hook.head
        if begins_job:
            self._jobs += 1
            self._users.add(hook.user)
        for image in hook.images:
            if (how := values.text(image, "how")) == IMPORTED:
                self._imported_bytes += values.count(image, "bytes")
            if begins_job and how in _FOUND:
                self._found_bytes += values.count(image, "bytes")
                self._finding += values.seconds(image, "ms")
        for profile, start in hook.starts:
            if reason := why_cold(start)[0]:
                cold = self._running[hook.node, hook.job, profile] = f"{hook.user}: {reason}"
                self._cold[cold] += 1
        for profile, harvest in hook.harvests:
            self._published_bytes += values.count(harvest, "size")
            cold, use = self._running.pop((hook.node, hook.job, profile), ""), values.text(harvest, "use")
            if use in contract.USES:
                self._uses[hook.user, use] += 1
            if use in contract.UNUSED and cold:
                self._cold[cold] -= 1

    def result(self, now: float) -> Summary:
        """Return the sums. At `now`, in epoch seconds, the last hooks may go on."""
        for hook in self._hooks.killed(now):
            self._add_hook(hook)
        found = self._counters
        imports = int(found[metrics.IMPORTS]["ok",][0])
        return Summary(
            first=self._first,
            last=self._last,
            clusters=tuple(sorted(self._clusters)),
            runs=_sum(found, metrics.HOOK_RUNS),
            jobs=self._jobs,
            users=len(self._users),
            nodes=len(self._nodes),
            profiles=_uses({labels: int(number) for labels, (number,) in found[metrics.CACHE_USES].items()}),
            by_user=_uses(self._uses)[:TOP],
            cold=_most(self._cold),
            imports=imports,
            imported_bytes=self._imported_bytes,
            avoided=max(_sum(found, metrics.IMAGE_USES) - imports, 0),
            saved=self._saved(),
            entries=_sum(found, metrics.HARVESTED),
            published_bytes=self._published_bytes,
            failures=_most({": ".join(labels): int(number) for labels, (number,) in found[metrics.FAILURES].items()}),
            times=tuple(_times(found)),
        )

    def _saved(self) -> float | None:
        seconds = sum(values[-1] for values in self._counters[metrics.IMPORT_SECONDS].values())
        if not (seconds and self._imported_bytes):
            return None
        return max(self._found_bytes * seconds / self._imported_bytes - self._finding, 0.0)


def _sum(found: Counters, metric: Metric) -> int:
    return int(sum(number for (number,) in found[metric].values()))


def _times(found: Counters) -> Iterable[Times]:
    failed = Counter({IMPORT: int(found[metrics.IMPORTS]["failed",][0])})
    for (hook, outcome), (number,) in found[metrics.HOOK_RUNS].items():
        failed[hook] += int(number) * (outcome in _BAD)
    named = [(hook, metrics.HOOK_SECONDS, (hook,)) for hook in sorted(failed.keys() - {IMPORT})]
    for what, metric, labels in (*named, (IMPORT, metrics.IMPORT_SECONDS, ()), (WAIT, metrics.WAIT_SECONDS, ())):
        values = found[metric].get(labels, [0.0] * metric.length)
        shares = (_quantile(metric.bounds, values, share) for share in (0.5, 0.95, 0.99))
        if (number := int(sum(values[:-1]))) or failed[what]:
            yield Times(what, number, failed[what], *shares)


def _quantile(bounds: tuple[float, ...], values: list[float], share: float) -> float:
    """Estimate a quantile of a histogram as Prometheus does: evenly within a class, of the last one its lower bound."""
    wanted, below = share * sum(values[:-1]), 0.0
    for low, high, number in zip((0.0, *bounds), (*bounds, bounds[-1]), values, strict=False):
        if number and below + number >= wanted:
            return low + (high - low) * (wanted - below) / number
        below += number
    return 0.0


def _most(numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the largest numbers by their names, then the rest as `OTHERS` if there is any."""
    ordered = sorted(((name, number) for name, number in numbers.items() if number), key=lambda one: (-one[1], one[0]))
    rest = sum(number for _, number in ordered[TOP:])
    return dict(ordered[:TOP]) | ({OTHERS: rest} if rest else {})


def _uses(numbers: Mapping[tuple[str, ...], int]) -> tuple[Uses, ...]:
    """Return the names, those that were used most first; those that were never touched come last."""
    names = {name for name, _ in numbers}
    found = [Uses(name, *(numbers.get((name, use), 0) for use in contract.USES)) for name in names]
    return tuple(sorted(found, key=lambda one: (-one.hit - one.built - one.unknown, one.name)))

"""A summary of a log: what `warmstart report` shows, as numbers.

**Time saved on imports**: on the first node of each job, an image that was in the store saves its size at the mean rate
of the imports in the log, less the time that the hook took. A hook that waited for an import saves nothing: the job
would have imported at the same time.

**Hits** are what epilogs have seen (`use`; docs/reference/profiles.md, Seen hits): a cache that was seeded and to which
nothing was added is a hit if the tool left a trace of its use, else nobody knows. What was not used at all is neither
hit nor miss, nor is what a job went around. A profile of which nobody ever sees a hit has no rate.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from warmstart import wing
from warmstart.audit import events, values
from warmstart.audit.line import Line
from warmstart.policy.units import format_size
from warmstart.profiles import contract
from warmstart.report.lines import (
    DRAINED,
    EPILOG,
    FAILED,
    IMPORTED,
    KILLED,
    PROLOG,
    Hook,
    Hooks,
    ImageUse,
    Item,
    failure_of,
    image_of,
    kind_of,
    why_cold,
)

TOP = 10
OTHERS = "(others)"
_HOOKS = frozenset({PROLOG, EPILOG, "job-container", *wing.programs()})
_FOUND = frozenset({"reused", "stale"})
_BAD = frozenset({FAILED, DRAINED, "crashed", KILLED})  # outcomes


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
    """How long something took, in seconds."""

    number: int
    p50: float
    p95: float
    p99: float
    longest: float


class HookTimes(NamedTuple):
    """The runs of one hook."""

    hook: str
    failed: int
    times: Times


class Day(NamedTuple):
    """What happened on one day."""

    start: str  # 2026-01-31
    jobs: int
    hit: int  # caches
    built: int
    imported: int
    uses: int  # of images by jobs


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
    imports: Times
    imported_bytes: int
    avoided: int  # uses of images by jobs on every node, less the imports
    saved: float | None  # seconds, on imports; None if no import in the log tells it
    entries: int  # that were published
    published_bytes: int  # of bundles
    of_wings: dict[str, int]  # what wings count
    failures: dict[str, int]  # by "refused: code", "drained: code", "step: code", or "event: code" of an act
    hooks: tuple[HookTimes, ...]
    days: tuple[Day, ...]

    @property
    def caches(self) -> Uses:
        """All profiles of which hits are seen together."""
        seen = [uses for uses in self.profiles if uses.is_seen]
        return Uses("", *(sum(getattr(uses, name) for uses in seen) for name in Uses._fields[1:]))


def summarize(lines: Iterable[Line], now: float) -> Summary:
    """Add up a log, of which the last hooks may go on at `now`, in epoch seconds."""
    adding, pairs = _Adding(), Hooks()
    for line in lines:
        adding.add_line(line)
        for hook in pairs.add(line):
            adding.add(hook)
    for hook in pairs.killed(now):
        adding.add(hook)
    return adding.result()


class Durations:
    """Seconds, rounded to three digits, so that memory does not grow with their number."""

    def __init__(self) -> None:
        self._found = Counter[float]()
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._found[float(f"{seconds:.3g}")] += 1
        self.total += seconds

    def times(self) -> Times:
        """Return what these are like; zeros if there are none."""
        p50, p95, p99, longest = map(self._quantile, (0.5, 0.95, 0.99, 1.0))
        return Times(self._found.total(), p50, p95, p99, longest)

    def _quantile(self, share: float) -> float:
        below = 0
        for seconds in sorted(self._found):
            below += self._found[seconds]
            if below >= share * self._found.total():
                return seconds
        return 0.0


class _Images:
    """Imports, and how jobs got their images."""

    def __init__(self) -> None:
        self.imports = Durations()
        self.imported_bytes = self.uses = 0
        self._found_bytes = 0  # of images that first nodes found in the store
        self._finding = 0.0  # seconds, of these

    def add_import(self, image: ImageUse) -> None:
        self.imports.add(max(image.seconds - image.waited, 0.0))
        self.imported_bytes += image.size

    def add_use(self, image: ImageUse, *, head: bool) -> None:
        self.uses += 1
        if head and image.how in _FOUND:
            self._found_bytes += image.size
            self._finding += image.seconds

    def saved(self) -> float | None:
        if not self.imported_bytes or not self.imports.total:
            return None
        rate = self.imported_bytes / self.imports.total
        return max(self._found_bytes / rate - self._finding, 0.0)


class _Caches:
    """How caches began, and what came of them."""

    def __init__(self) -> None:
        self.entries = self.published_bytes = 0
        self.cold = Counter[str]()
        self.by_profile, self.by_user = Counter[tuple[str, str]](), Counter[tuple[str, str]]()  # name, use

    def add_start(self, user: str, start: Item) -> None:
        if why := why_cold(start):
            self.cold[f"{user}: {kind_of(why)}"] += 1

    def add_harvest(self, user: str, profile: str, harvest: Item) -> None:
        self.entries += values.count(harvest, "entries")
        self.published_bytes += values.count(harvest, "size")
        if (use := values.text(harvest, "use")) in contract.USES:
            self.by_profile[profile, use] += 1
            self.by_user[user, use] += 1


class _Runs:
    """Hooks: how long they took, and what failed."""

    def __init__(self) -> None:
        self.number = 0
        self.failures = Counter[str]()
        self._took = defaultdict[str, Durations](Durations)  # by hook
        self._failed = Counter[str]()

    def add(self, hook: Hook) -> None:
        for failure in hook.failures:
            what = failure.step if failure.degree == FAILED else failure.degree
            self.failures[f"{what}: {failure.code}"] += 1
        if hook.done_by:
            return
        self.number += 1
        if hook.name in _HOOKS:
            self._failed[hook.name] += hook.outcome in _BAD
            if hook.outcome != KILLED:
                self._took[hook.name].add(hook.seconds)

    def by_hook(self) -> tuple[HookTimes, ...]:
        return tuple(HookTimes(name, self._failed[name], self._took[name].times()) for name in sorted(self._failed))


class _Adding:
    def __init__(self) -> None:
        self._first = self._last = ""
        self._clusters, self._nodes, self._users = (set[str]() for _ in range(3))
        self._images, self._caches, self._runs = _Images(), _Caches(), _Runs()
        self._jobs = 0
        self._of_wings = Counter[str]()
        self._days = defaultdict[str, Counter[str]](Counter)

    def add_line(self, line: Line) -> None:
        """Add what any line says, and acts that have a line of their own."""
        event, at = values.text(line, "event"), values.text(line, "ts")
        self._first = min(self._first or at, at)
        self._last = max(self._last, at)
        self._nodes.add(values.text(line, "node"))
        if cluster := values.text(line, "cluster"):
            self._clusters.add(cluster)
        if event == events.IMAGE_IMPORTED:
            self._add_import(image_of(line), at)
        elif event.endswith("failed"):
            self._runs.failures[f"{event}: {failure_of(values.mapping(line, 'error')).code}"] += 1

    def add(self, hook: Hook) -> None:
        """Add a run of a program."""
        self._runs.add(hook)
        self._of_wings.update(hook.counts)
        day = self._day(hook.began)
        for image in hook.images:
            if image.how == IMPORTED:
                self._add_import(image, hook.began)
            if hook.name == PROLOG:
                self._images.add_use(image, head=hook.head)
                day["uses"] += 1
        for _, start in hook.starts:
            self._caches.add_start(hook.user, start)
        for profile, harvest in hook.harvests:
            self._caches.add_harvest(hook.user, profile, harvest)
            day[values.text(harvest, "use")] += 1
        if hook.name == PROLOG and hook.head:
            self._jobs += 1
            day["jobs"] += 1
            self._users.add(hook.user)

    def _add_import(self, image: ImageUse, at: str) -> None:
        self._images.add_import(image)
        self._day(at)["imported"] += 1

    def _day(self, at: str) -> Counter[str]:
        return self._days[at[: len("2026-01-31")]]

    def result(self) -> Summary:
        images, caches, runs = self._images, self._caches, self._runs
        return Summary(
            first=self._first,
            last=self._last,
            clusters=tuple(sorted(self._clusters)),
            runs=runs.number,
            jobs=self._jobs,
            users=len(self._users),
            nodes=len(self._nodes),
            profiles=_uses(caches.by_profile),
            by_user=_uses(caches.by_user)[:TOP],
            cold=_most(caches.cold),
            imports=images.imports.times(),
            imported_bytes=images.imported_bytes,
            avoided=max(images.uses - images.imports.times().number, 0),
            saved=images.saved(),
            entries=caches.entries,
            published_bytes=caches.published_bytes,
            of_wings=dict(sorted(self._of_wings.items())),
            failures=_most(runs.failures),
            hooks=runs.by_hook(),
            days=tuple(
                Day(start, *(day[name] for name in Day._fields[1:])) for start, day in sorted(self._days.items()) if day
            ),
        )


def in_units(name: str, number: int) -> str:
    """Return the number of something that a wing counts: bytes, or times."""
    return format_size(number) if name.partition(":")[0].endswith("bytes") else f"{number:,}"


def _most(numbers: Counter[str]) -> dict[str, int]:
    """Return the largest numbers by their names, then the rest as `OTHERS` if there is any."""
    ordered = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(number for _, number in ordered[TOP:])
    return dict(ordered[:TOP]) | ({OTHERS: rest} if rest else {})


def _uses(numbers: Counter[tuple[str, str]]) -> tuple[Uses, ...]:
    """Return the names, those that were used most first; those that were never touched come last."""
    names = {name for name, _ in numbers}
    found = [Uses(name, *(numbers[name, use] for use in contract.USES)) for name in names]
    return tuple(sorted(found, key=lambda one: (-one.hit - one.built - one.unknown, one.name)))

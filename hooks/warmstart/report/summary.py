"""A summary of a log, in bounded memory: what `warmstart report` shows, as numbers.

**Time saved on imports**: on the first node of each job, an image that was in the store saves its size at the mean rate
of the imports in the log, less the time that the hook took. A hook that waited for an import saves nothing: the job
would have imported at the same time.

**Compiling saved**: a hit saves the mean time in which jobs that began without entries of the same profile made theirs
(`building_ms` of an epilog). It counts on each node.

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
from warmstart.report.counting import Durations, Tally, Times, percent, top
from warmstart.report.lines import (
    DRAINED,
    EPILOG,
    FAILED,
    IMPORTED,
    KILLED,
    PROLOG,
    REFUSED,
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
MOST_DISTINCT = 1 << 16  # users and nodes that are told apart
NO_ENTRY = frozenset({"nothing-published", "nothing-proposed", "asked-fresh"})  # nothing was there, or wanted
_HOOKS = frozenset({PROLOG, EPILOG, "job-container", *wing.programs()})
_FOUND = frozenset({"reused", "stale"})
_BAD = frozenset({FAILED, DRAINED, "crashed", KILLED})  # outcomes


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
        return percent(self.hit, self.hit + self.built) if self.is_seen else "-"


class Counted(NamedTuple):
    """A name and how often it occurred."""

    name: str
    times: int


class HookTimes(NamedTuple):
    """The runs of one hook."""

    hook: str
    failed: int
    times: Times


class Saved(NamedTuple):
    """Time saved on imports, or on compiling (see the module)."""

    seconds: float
    counted: int  # images of first nodes, or hits, for which the time is known
    unknown: int  # those for which no import, or cold start, in the log tells it


class Period(NamedTuple):
    """One day, or one hour."""

    start: str  # 2026-01-31, or 2026-01-31T09
    jobs: int
    hit: int  # caches
    built: int
    imported: int
    uses: int  # of images by jobs
    published_bytes: int  # of bundles
    imported_bytes: int


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
    cold: tuple[Counted, ...]  # "user: reason", of caches that began cold on a node
    cold_anyway: tuple[Counted, ...]  # "profile: reason", although there were entries
    imports: Times
    imported_bytes: int
    avoided: int  # uses of images by jobs on every node, less the imports
    waits: Times  # for imports
    images: tuple[Counted, ...]  # that were used most
    saved: Saved
    compiling: Saved
    entries: int  # that were published
    rejected: tuple[Counted, ...]  # entries, by reason
    of_wings: tuple[Counted, ...]  # what wings count
    refused: tuple[Counted, ...]  # jobs, by code
    drained: tuple[Counted, ...]  # nodes, by code
    failed: tuple[Counted, ...]  # "step: code", or "event: code" of an act of its own
    hooks: tuple[HookTimes, ...]
    fetched_bytes: int  # that nodes read from the store: bundles, and images that they unpacked
    periods: tuple[Period, ...]

    @property
    def caches(self) -> Uses:
        """All profiles of which hits are seen together."""
        seen = [uses for uses in self.profiles if uses.is_seen]
        return Uses("", *(sum(getattr(uses, name) for uses in seen) for name in Uses._fields[1:]))


def summarize(lines: Iterable[Line], now: float, *, by_hour: bool = False) -> Summary:
    """Add up a log, of which the last hooks may go on at `now`, in epoch seconds. Periods are days, or hours."""
    adding, pairs = _Adding(by_hour=by_hour), Hooks()
    for line in lines:
        adding.add_line(line)
        for hook in pairs.add(line):
            adding.add(hook)
    for hook in pairs.killed(now):
        adding.add(hook)
    return adding.result()


class _Images:
    """Imports, and how jobs got their images."""

    def __init__(self) -> None:
        self.imports, self.waits = Durations(), Durations()
        self.imported_bytes = self.uses = 0
        self.references = Tally[str]()
        self._found = self._found_bytes = 0  # images that first nodes found in the store
        self._finding = 0.0  # seconds, of these

    def add_import(self, image: ImageUse) -> None:
        self.imports.add(max(image.seconds - image.waited, 0.0))
        self.imported_bytes += image.size

    def add_use(self, image: ImageUse, *, head: bool) -> None:
        self.uses += 1
        self.references.add(image.reference)
        if image.waited:
            self.waits.add(image.waited)
        if head and image.how in _FOUND:
            self._found += 1
            self._found_bytes += image.size
            self._finding += image.seconds

    def saved(self) -> Saved:
        if not self.imported_bytes or not self.imports.total:
            return Saved(0.0, 0, self._found)
        rate = self.imported_bytes / self.imports.total
        return Saved(max(self._found_bytes / rate - self._finding, 0.0), self._found, 0)


class _Caches:
    """How caches began, and what came of them."""

    def __init__(self) -> None:
        self.entries = self.fetched = 0
        self.cold, self.cold_anyway, self.rejected = Tally[str](), Tally[str](), Tally[str]()
        self.by_profile, self.by_user = (Tally[tuple[str, ...]](MOST_DISTINCT) for _ in range(2))  # name, use
        self._building = defaultdict[str, Durations](Durations)  # by profile

    def add_start(self, user: str, profile: str, start: Item) -> None:
        self.fetched += values.count(start, "fetched_bytes")
        if why := why_cold(start):
            self.cold.add(f"{user}: {kind_of(why)}")
            if why not in NO_ENTRY:
                self.cold_anyway.add(f"{profile}: {why}")

    def add_harvest(self, user: str, profile: str, harvest: Item) -> None:
        self.entries += values.count(harvest, "entries")
        for reason, count in values.counts(harvest, "rejected").items():
            self.rejected.add(reason, count)
        if (use := values.text(harvest, "use")) in contract.USES:
            self.by_profile.add((profile, use))
            self.by_user.add((user, use))
        if use == contract.BUILT and not values.count(harvest, "seeded"):
            self._building[profile].add(values.seconds(harvest, "building_ms"))

    def saved(self) -> Saved:
        hits = {profile: count for (profile, use), count in self.by_profile.items() if use == contract.HIT}
        known = {profile: count for profile, count in hits.items() if profile in self._building}
        saved = sum(count * self._building[profile].mean for profile, count in known.items())
        return Saved(saved, sum(known.values()), sum(hits.values()) - sum(known.values()))


class _Runs:
    """Hooks: how long they took, and what failed."""

    def __init__(self) -> None:
        self.number = 0
        self._took = defaultdict[str, Durations](Durations)  # by hook
        self._failed = Counter[str]()
        self.failures = {degree: Tally[str]() for degree in (REFUSED, DRAINED, FAILED)}

    def add(self, hook: Hook) -> None:
        for failure in hook.failures:
            name = f"{failure.step}: {failure.code}" if failure.degree == FAILED else failure.code
            self.failures[failure.degree].add(name)
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
    def __init__(self, *, by_hour: bool) -> None:
        self._length = len("2026-01-31T09") if by_hour else len("2026-01-31")
        self._first = self._last = ""
        self._clusters, self._nodes, self._users = (Tally[str](MOST_DISTINCT) for _ in range(3))
        self._images, self._caches, self._runs = _Images(), _Caches(), _Runs()
        self._jobs = self._unpacked = 0
        self._of_wings = Tally[str]()
        self._periods = defaultdict[str, Counter[str]](Counter)

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
        elif event == events.IMAGE_UNPACKED:
            self._unpacked += values.count(line, "fetched_bytes")
        elif event.endswith("failed"):
            self._runs.failures[FAILED].add(f"{event}: {failure_of(values.mapping(line, 'error')).code}")

    def add(self, hook: Hook) -> None:
        """Add a run of a program."""
        self._runs.add(hook)
        period = self._periods[hook.began[: self._length]]
        for name, count in hook.counts.items():
            self._of_wings.add(name, count)
        for image in hook.images:
            if image.how == IMPORTED:
                self._add_import(image, hook.began)
            if hook.name == PROLOG:
                self._images.add_use(image, head=hook.head)
                period["uses"] += 1
        for profile, start in hook.starts:
            self._caches.add_start(hook.user, profile, start)
        for profile, harvest in hook.harvests:
            self._caches.add_harvest(hook.user, profile, harvest)
            period["published_bytes"] += values.count(harvest, "size")
            period[values.text(harvest, "use")] += 1
        if hook.name == PROLOG and hook.head:
            self._jobs += 1
            period["jobs"] += 1
            self._users.add(hook.user)

    def _add_import(self, image: ImageUse, at: str) -> None:
        self._images.add_import(image)
        period = self._periods[at[: self._length]]
        period["imported"] += 1
        period["imported_bytes"] += image.size

    def result(self) -> Summary:
        images, caches, runs = self._images, self._caches, self._runs
        periods = [
            Period(start, *(period[name] for name in Period._fields[1:]))
            for start, period in sorted(self._periods.items())
            if period
        ]
        return Summary(
            first=self._first,
            last=self._last,
            clusters=tuple(sorted(name for name, _ in self._clusters.items())),
            runs=runs.number,
            jobs=self._jobs,
            users=len(self._users),
            nodes=len(self._nodes),
            profiles=_most_used(caches.by_profile, MOST_DISTINCT),
            by_user=_most_used(caches.by_user, TOP),
            cold=_counts(caches.cold),
            cold_anyway=_counts(caches.cold_anyway),
            imports=images.imports.times(),
            imported_bytes=images.imported_bytes,
            avoided=max(images.uses - images.imports.count, 0),
            waits=images.waits.times(),
            images=_counts(images.references),
            saved=images.saved(),
            compiling=caches.saved(),
            entries=caches.entries,
            rejected=_counts(caches.rejected),
            of_wings=tuple(Counted(name, number) for name, number in sorted(self._of_wings.items()) if number),
            refused=_counts(runs.failures[REFUSED]),
            drained=_counts(runs.failures[DRAINED]),
            failed=_counts(runs.failures[FAILED]),
            hooks=runs.by_hook(),
            fetched_bytes=caches.fetched + self._unpacked,
            periods=tuple(periods),
        )


def in_units(counted: Counted) -> str:
    """Return the number of something that a wing counts: bytes, or times."""
    is_size = counted.name.partition(":")[0].endswith("bytes")
    return format_size(counted.times) if is_size else f"{counted.times:,}"


def _counts(tally: Tally[str]) -> tuple[Counted, ...]:
    return tuple(Counted(*item) for item in top(tally, TOP))


def _most_used(tally: Tally[tuple[str, ...]], most: int) -> tuple[Uses, ...]:
    """Return the names that were used most; those that were never touched come last."""
    by_name = defaultdict[str, dict[str, int]](dict)
    for (name, use), count in tally.items():
        by_name[name][use] = count
    found = [Uses(name, *(count.get(use, 0) for use in contract.USES)) for name, count in by_name.items()]
    return tuple(sorted(found, key=lambda one: (-one.hit - one.built - one.unknown, one.name))[:most])

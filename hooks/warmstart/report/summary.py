"""A summary of many runs, in bounded memory: what `warmstart report` shows, as numbers.

**Time saved** counts imports only. On the first node of each job, an image that was in the store saves the mean
duration of that image's imports in the same period; if there was none, its size at the period's mean import rate; less
the time for which the hook looked or waited for it. A hook that waited for another's import saves nothing: the job
would have imported at the same time.

**Compiling saved**: a hit saves the mean time in which jobs that began without entries made theirs (`building_ms` of
`cache.harvested`), those of this user and profile or, if there was none, all of the profile. Both count on each node.

**Hits** are what epilogs have seen (`use` of `cache.harvested`; docs/reference/profiles.md, Seen hits): a cache that
was seeded and to which nothing was added is a hit if the tool left a trace of its use, else nobody knows. What was not
used at all is neither hit nor miss, nor is what a job went around. Of a profile that shows no hit where it may have had
some, only misses would be seen: its builds count as unknown, too.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from warmstart import wing
from warmstart.audit import events
from warmstart.audit.runs import (
    DRAINED,
    EPILOG,
    FAILED,
    IMPORTED,
    PROLOG,
    REFUSED,
    Harvest,
    ImageUse,
    Run,
    kind_of,
)
from warmstart.policy.units import format_size
from warmstart.profiles import contract
from warmstart.report.counting import Durations, Tally, counted, percent, top

TOP = 10
LEAST_UNSETTLED, MOST_UNSETTLED = 3, 100  # jobs
MOST_IMAGES = 2048
MOST_DISTINCT = 1 << 16  # users and nodes that are told apart
MOST_PERIODS = 4000  # days: ten years
DAY = 86400.0  # seconds
# In `cold`: nothing was there, or nothing was wanted.
_NO_ENTRY = frozenset({"nothing-published", "nothing-proposed", "asked-fresh"})
_HOOKS = frozenset({PROLOG, EPILOG, "job-container", *wing.programs()})
_Job = tuple[str, str, int]  # cluster, node, id
_FOUND = frozenset({"reused", "stale"})


class Uses(NamedTuple):
    """What jobs did with a cache, as far as their epilogs could tell."""

    name: str
    hit: int
    built: int
    unknown: int
    untouched: int
    around: int

    @property
    def percent(self) -> str:
        """The share of hits in hits and builds."""
        return percent(self.hit, self.hit + self.built)


class SetByJobs(NamedTuple):
    """A variable of a profile that jobs set themselves, by their word."""

    variable: str
    profile: str
    jobs: int
    users: int


class Unsettled(NamedTuple):
    """A cache to which each job of a user adds entries, although it is seeded."""

    user: str
    profile: str
    jobs: int
    why: str  # most likely


class Counted(NamedTuple):
    """A name and how often it occurred."""

    name: str
    times: int


class ColdStarts(NamedTuple):
    """How often profiles of a user's jobs began cold on a node, and why, the most frequent reasons first.

    Those that the jobs then did not use are left out.
    """

    user: str
    times: int
    unknown: int  # of these: nobody has seen whether the job used it
    why: tuple[Counted, ...]


class HookTimes(NamedTuple):
    """The runs of one hook; times are in seconds."""

    hook: str
    runs: int
    failed: int
    p50: float
    p95: float
    p99: float
    longest: float


class Images(NamedTuple):
    """Imports, and how jobs got their images, counted on every node."""

    imported: int
    imported_bytes: int
    avoided: int  # uses of images by jobs, less the imports
    waits: int
    wait_p50: float  # seconds
    wait_p95: float
    import_p50: float
    import_p95: float


class Saved(NamedTuple):
    """Time saved on imports, or on compiling (see the module)."""

    seconds: float
    counted: int  # images of first nodes, or hits, for which the time is known
    unknown: int  # those for which no import, or cold start, in the period tells it


class Returns(NamedTuple):
    """Starts of jobs on nodes, and how many of them came back: a hook had run there for a job of the same user.

    Only these profit from what a node keeps for a user.
    """

    starts: int
    in_a_day: int
    in_a_week: int  # those of a day, too


class Entries(NamedTuple):
    """Entries of caches."""

    harvested: int
    harvested_bytes: int
    rejected: tuple[Counted, ...]  # by reason
    retired: int  # jobs had removed them


class Period(NamedTuple):
    """One day, or one hour."""

    start: str  # 2026-01-31, or 2026-01-31T09
    jobs: int
    hits: int
    built: int
    imported: int
    uses: int  # of images by jobs
    published_bytes: int  # of bundles
    imported_bytes: int


class Summary(NamedTuple):
    """What the runs of a time add up to."""

    first: str  # `ts` of the first and last event
    last: str
    clusters: tuple[str, ...]
    runs: int
    jobs: int  # starts of jobs: a requeued job counts twice
    users: int
    nodes: int
    returns: Returns
    profiles: tuple[Uses, ...]
    by_user: tuple[Uses, ...]
    sets: int  # caches of images that only steps name
    warm_sets: int  # of these, those that began with entries of a profile
    warm_by_running: int  # jobs that began with entries of a job that still ran
    cold_by_user: tuple[ColdStarts, ...]
    unsettled: tuple[Unsettled, ...]
    around: tuple[SetByJobs, ...]
    images: Images
    top_images: tuple[Counted, ...]
    saved: Saved
    compiling: Saved
    cold_anyway: tuple[Counted, ...]  # "profile: reason", although there were entries
    entries: Entries
    of_wings: tuple[Counted, ...]  # what wings count, on each node, by its metric and labels
    refused: tuple[Counted, ...]  # jobs, by code
    drained: tuple[Counted, ...]  # nodes, by code
    failed: tuple[Counted, ...]  # "step: code"
    hooks: tuple[HookTimes, ...]
    removed_bundles: int
    evicted_images: int
    fetched_bytes: int  # that nodes read from the store: bundles, and images that they unpacked
    periods: tuple[Period, ...]

    @property
    def caches(self) -> Uses:
        """All profiles together."""
        return Uses("", *(sum(getattr(uses, name) for uses in self.profiles) for name in Uses._fields[1:]))


def summarize(runs: Iterable[Run], *, by_hour: bool = False) -> Summary:
    """Add up runs. Periods are days, or hours."""
    adding = _Adding(by_hour=by_hour)
    for run in runs:
        adding.add(run)
    return adding.result()


@dataclass
class _Image:
    """One digest: its imports, and its uses on first nodes that needed none."""

    imports: int = 0
    import_seconds: float = 0.0
    size: int = 0
    uses: int = 0
    use_seconds: float = 0.0


class _Built(NamedTuple):
    """A harvest of entries although the job was seeded."""

    began: str  # time of the hook
    two_writers: bool
    akin: bool
    changed: bool


class SettlingProfile:
    """Whether a user's jobs that are seeded with a profile's entries have come to find all that they need.

    Harvests may come out of order: those of a run that has not ended come last.
    """

    def __init__(self) -> None:
        self._hit = ""  # time of the last hit
        self._built: deque[_Built] = deque(maxlen=MOST_UNSETTLED)

    def add(self, began: str, harvest: Harvest, rejected: Mapping[str, int]) -> None:
        """Add a harvest of a hook that began then, and the entries of it that were rejected, by reason."""
        if harvest.use == contract.HIT:
            self._hit = max(self._hit, began)
        if harvest.seeded and harvest.use == contract.BUILT:
            two_writers = "two-writers" in rejected
            self._built.append(_Built(began, two_writers, bool(harvest.akin), bool(harvest.changed)))

    def _unsettled(self) -> list[_Built]:
        return [built for built in self._built if built.began > self._hit]

    @property
    def jobs(self) -> int:
        """How many jobs since the last hit have each built entries; 0 while they are too few to tell."""
        found = len(self._unsettled())
        return found if found >= LEAST_UNSETTLED else 0

    @property
    def why(self) -> str:
        """The most likely reason that it does not settle."""
        found = self._unsettled()
        if 2 * sum(built.two_writers for built in found) >= len(found):
            return "several processes write the same entries at once (two-writers)"
        if 2 * sum(built.akin for built in found) >= len(found):
            return "the same names under other hashes: the source's path, a version or an option changes with each job"
        if 2 * sum(built.changed for built in found) >= len(found):
            return "the job writes anew what it was given: the time stamp of a source changes, or its content"
        return "the keys change with each job: a path of the job, a version or an option is in them"


@dataclass
class _Hook:
    failed: int = 0
    times: Durations = field(default_factory=Durations)


class _Adding:
    def __init__(self, *, by_hour: bool) -> None:
        self._length = len("2026-01-31T09") if by_hour else len("2026-01-31")
        self._first = self._last = ""
        self._runs = self._jobs = self._removed = self._evicted = self._fetched = 0
        self._users, self._nodes, self._clusters = (Tally[str](MOST_DISTINCT) for _ in range(3))
        self._returns = Returns(0, 0, 0)
        self._seen = dict[tuple[str, str, str], str]()  # cluster, node and user → `ts` of the last hook, latest last
        # By use, profile, and user or period.
        self._user_uses, self._period_uses = (Tally[tuple[str, ...]](MOST_DISTINCT) for _ in range(2))
        # By user, reason, and "unknown" if nobody saw whether it was used; and those of jobs without an end so far.
        self._why_cold = Tally[tuple[str, ...]](MOST_DISTINCT)
        self._open_cold: dict[_Job, list[tuple[str, str, str]]] = {}  # profile, user, reason
        self._building = defaultdict[tuple[str, str], Durations](Durations)  # by profile, and user or "" for all
        self._settling: dict[tuple[str, str], SettlingProfile] = {}
        self._own = set[tuple[str, str, str, str, int]]()  # variable, profile, user, cluster and job
        self._images, self._references = dict[str, _Image](), Tally[str](MOST_IMAGES)
        self._dropped = 0  # uses of images that were forgotten
        self._imported = self._imported_bytes = self._uses = 0
        self._waits, self._imports = Durations(), Durations()
        self._cold, self._rejected = Tally[str](), Tally[str]()
        self._harvested = self._harvested_bytes = self._retired = 0
        self._sets = self._warm_sets = self._warm_by_running = 0
        self._of_running = dict[str, int]()  # bundle that was published while its job ran → the job
        self._of_wings = Tally[str]()
        self._failures = {degree: Tally[str]() for degree in (REFUSED, DRAINED, FAILED)}
        self._hooks: dict[str, _Hook] = {}
        self._periods: dict[str, Counter[str]] = {}

    def add(self, run: Run) -> None:
        self._runs += not run.done_by
        self._first = min(self._first or run.first, run.first)
        self._last = max(self._last, run.last)
        self._add_counts(run)
        self._nodes.add(run.node)
        if run.cluster:
            self._clusters.add(run.cluster)
        period = self._period(run)
        self._add_hook(run)
        for failure in run.failures:
            name = f"{failure.step}: {failure.code}" if failure.degree == FAILED else failure.code
            self._failures[failure.degree].add(name)
        for harvest in run.harvests:
            self._harvested += harvest.entries
            self._retired += harvest.retired
            self._harvested_bytes += harvest.size if harvest.entries else 0
            self._add_use(run, harvest)
        for reasons in run.rejected.values():
            for reason, count in reasons.items():
                self._rejected.add(reason, count)
        period["published_bytes"] += run.published.total()
        for image in run.images:
            self._add_image(run, image, period)
        if run.hook == PROLOG and run.head:
            self._jobs += 1
            period["jobs"] += 1
            self._users.add(run.user)
            given = (bundle for seeding in run.seedings.values() for bundle in seeding.from_bundles)
            self._warm_by_running += any(bundle in self._of_running for bundle in given)
        self._add_return(run)
        self._add_running(run)
        self._sets += bool(run.set_of)
        self._warm_sets += bool(run.set_of and run.warm)
        if run.hook == PROLOG or run.set_of:
            self._add_cold(run)
        self._settle_cold(run)

    def _add_return(self, run: Run) -> None:
        if not run.user or run.hook not in (PROLOG, EPILOG):
            return
        where = (run.cluster, run.node, run.user)
        seen = self._seen.pop(where, "")
        if run.hook == PROLOG:
            after = _seconds(run.first) - _seconds(seen) if seen else math.inf
            starts, in_a_day, in_a_week = self._returns
            self._returns = Returns(starts + 1, in_a_day + (after <= DAY), in_a_week + (after <= 7 * DAY))
        self._seen[where] = max(seen, run.last or run.first)
        if len(self._seen) > MOST_DISTINCT:
            del self._seen[next(iter(self._seen))]

    def _add_running(self, run: Run) -> None:
        if any(harvest.running for harvest in run.harvests) and len(self._of_running) < MOST_DISTINCT:
            self._of_running |= dict.fromkeys((made.bundle for made in run.made), run.job)
        elif run.hook == EPILOG and self._of_running:
            self._of_running = {bundle: job for bundle, job in self._of_running.items() if job != run.job}

    def _add_counts(self, run: Run) -> None:
        self._removed += run.counts[events.BUNDLE_REMOVED]
        self._evicted += run.counts[events.IMAGE_EVICTED]
        self._fetched += run.unpacked + sum(seeding.fetched for seeding in run.seedings.values())
        for name, number in run.counted.items():
            self._of_wings.add(name, number)

    def _add_cold(self, run: Run) -> None:
        for profile, reason in run.cold.items():
            job = (run.cluster, run.node, run.job)
            self._open_cold.setdefault(job, []).append((profile, run.user, kind_of(reason)))
            if len(self._open_cold) > MOST_DISTINCT:
                self._count_cold(self._open_cold.pop(next(iter(self._open_cold))), contract.UNKNOWN)
            if reason not in _NO_ENTRY:
                self._cold.add(f"{profile}: {reason}")

    def _settle_cold(self, run: Run) -> None:
        """Count what began cold and was used, as its harvest has seen."""
        job = (run.cluster, run.node, run.job)
        uses = {harvest.profile: harvest.use for harvest in run.harvests if harvest.use}
        if not uses or job not in self._open_cold:
            return
        found = self._open_cold.pop(job)
        for use in {*uses.values()} - contract.UNUSED:
            seen = contract.UNKNOWN if use == contract.UNKNOWN else ""
            self._count_cold([cold for cold in found if uses.get(cold[0]) == use], seen)
        if left := [cold for cold in found if cold[0] not in uses]:
            self._open_cold[job] = left

    def _count_cold(self, found: Iterable[tuple[str, str, str]], seen: str) -> None:
        for _, user, reason in found:
            self._why_cold.add((user, reason, seen))

    def _add_use(self, run: Run, harvest: Harvest) -> None:
        if harvest.use not in contract.USES:
            return
        for variable in harvest.own if len(self._own) < MOST_DISTINCT else ():
            self._own.add((variable, harvest.profile, run.user, run.cluster, run.job))
        self._user_uses.add((harvest.use, harvest.profile, run.user))
        self._period_uses.add((harvest.use, harvest.profile, run.first[: self._length]))
        if harvest.use == contract.BUILT and not harvest.seeded and len(self._building) < MOST_DISTINCT:
            for user in (run.user, ""):
                self._building[harvest.profile, user].add(harvest.building)
        whose = (run.user, harvest.profile)
        if whose in self._settling or len(self._settling) < MOST_DISTINCT:
            self._settling.setdefault(whose, SettlingProfile()).add(
                run.first, harvest, run.rejected.get(harvest.profile, {})
            )

    def _add_hook(self, run: Run) -> None:
        if run.hook not in _HOOKS:
            return
        hook = self._hooks.setdefault(run.hook, _Hook())
        hook.failed += run.outcome in ("failed", "crashed")
        if run.seconds:
            hook.times.add(run.seconds)

    def _add_image(self, run: Run, image: ImageUse, period: Counter[str]) -> None:
        known = self._image(image.digest)
        known.size = image.size or known.size
        if image.how == IMPORTED:
            took = max(image.seconds - image.waited, 0.0)
            known.imports += 1
            known.import_seconds += took
            self._imports.add(took)
            self._imported += 1
            self._imported_bytes += image.size
            period["imported"] += 1
            period["imported_bytes"] += image.size
        if run.hook != PROLOG:  # an import for the jobs that wait
            return
        self._references.add(image.reference)
        self._uses += 1
        period["uses"] += 1
        if image.waited:
            self._waits.add(image.waited)
        if run.head and image.how in _FOUND:
            known.uses += 1
            known.use_seconds += image.seconds

    def _image(self, digest: str) -> _Image:
        if digest not in self._images and len(self._images) >= 2 * MOST_IMAGES:
            ordered = sorted(self._images.items(), key=lambda item: (item[1].uses, item[1].imports), reverse=True)
            self._dropped += sum(image.uses for _, image in ordered[MOST_IMAGES:])
            self._images = dict(ordered[:MOST_IMAGES])
        return self._images.setdefault(digest, _Image())

    def _period(self, run: Run) -> Counter[str]:
        start = run.first[: self._length]
        if start not in self._periods and len(self._periods) >= MOST_PERIODS:
            return Counter()
        return self._periods.setdefault(start, Counter())

    def _saved(self) -> Saved:
        seconds = self._imports.total
        measured = sum(image.size * image.imports for image in self._images.values())
        rate = measured / seconds if seconds else 0.0  # bytes per second
        saved, counted, unknown = 0.0, 0, self._dropped
        for image in self._images.values():
            if image.imports:
                each = image.import_seconds / image.imports
            elif rate and image.size:
                each = image.size / rate
            else:
                unknown += image.uses
                continue
            saved += max(image.uses * each - image.use_seconds, 0.0)
            counted += image.uses
        return Saved(saved, counted, unknown)

    def _compiling(self) -> Saved:
        saved, counted, unknown = 0.0, 0, 0
        for (use, profile, user), count in self._user_uses.items():
            if use == contract.HIT:
                known = self._building.get((profile, user)) or self._building.get((profile, ""))
                saved += count * known.total / known.count if known else 0.0
                counted, unknown = counted + (count if known else 0), unknown + (0 if known else count)
        return Saved(saved, counted, unknown)

    def _cold_by_user(self) -> tuple[ColdStarts, ...]:
        for job in [*self._open_cold]:
            self._count_cold(self._open_cold.pop(job), contract.UNKNOWN)
        reasons, unknown = defaultdict[str, Counter[str]](Counter), Counter[str]()
        for (user, reason, seen), count in self._why_cold.items():
            reasons[user][reason] += count
            unknown[user] += count if seen else 0
        found = [
            ColdStarts(user, why.total(), unknown[user], tuple(Counted(*one) for one in why.most_common()))
            for user, why in reasons.items()
        ]
        return tuple(sorted(found, key=lambda cold: (-cold.times, cold.user))[:TOP])

    def _unsettled(self) -> tuple[Unsettled, ...]:
        found = (Unsettled(*whose, one.jobs, one.why) for whose, one in self._settling.items() if one.jobs)
        return tuple(sorted(found, key=lambda one: (-one.jobs, one.user, one.profile))[:TOP])

    def _around(self) -> tuple[SetByJobs, ...]:
        by_name: dict[tuple[str, str], list[str]] = {}  # one user for each job
        for variable, profile, user, *_ in self._own:
            by_name.setdefault((variable, profile), []).append(user)
        found = (SetByJobs(*name, len(users), len({*users})) for name, users in by_name.items())
        return tuple(sorted(found, key=lambda one: (-one.jobs, one.variable))[:TOP])

    def result(self) -> Summary:
        users, periods = _Used(self._user_uses), _Used(self._period_uses)
        for start, period in self._periods.items():
            used = periods.by_whose[start]
            period["hits"], period["built"] = used[contract.HIT], used[contract.BUILT]
        images = Images(
            self._imported,
            self._imported_bytes,
            max(self._uses - self._imported, 0),
            self._waits.count,
            self._waits.quantile(0.5),
            self._waits.quantile(0.95),
            self._imports.quantile(0.5),
            self._imports.quantile(0.95),
        )
        hooks = [
            HookTimes(
                name,
                hook.times.count,
                hook.failed,
                hook.times.quantile(0.5),
                hook.times.quantile(0.95),
                hook.times.quantile(0.99),
                hook.times.longest,
            )
            for name, hook in sorted(self._hooks.items())
        ]
        return Summary(
            first=self._first,
            last=self._last,
            clusters=tuple(sorted(name for name, _ in self._clusters.items())),
            runs=self._runs,
            jobs=self._jobs,
            users=len(self._users),
            nodes=len(self._nodes),
            returns=self._returns,
            profiles=_most_used(periods.by_profile, MOST_IMAGES),
            by_user=_most_used(users.by_whose, TOP),
            sets=self._sets,
            warm_sets=self._warm_sets,
            warm_by_running=self._warm_by_running,
            cold_by_user=self._cold_by_user(),
            unsettled=self._unsettled(),
            around=self._around(),
            images=images,
            top_images=_counts(self._references),
            saved=self._saved(),
            compiling=self._compiling(),
            cold_anyway=_counts(self._cold),
            entries=Entries(self._harvested, self._harvested_bytes, _counts(self._rejected), self._retired),
            of_wings=tuple(Counted(name, number) for name, number in sorted(self._of_wings.items()) if number),
            refused=_counts(self._failures[REFUSED]),
            drained=_counts(self._failures[DRAINED]),
            failed=_counts(self._failures[FAILED]),
            hooks=tuple(hooks),
            removed_bundles=self._removed,
            evicted_images=self._evicted,
            fetched_bytes=self._fetched,
            periods=tuple(
                Period(start, *(period[name] for name in Period._fields[1:]))
                for start, period in sorted(self._periods.items())
                if start
            ),
        )


def set_by(jobs: int, whose: str, variable: str) -> str:
    """Return that jobs of these users had another value than ours for a variable."""
    own = "itself, or its image does" if jobs == 1 else "themselves, or their image does"
    return f"{counted(jobs, 'job')} of {whose} set {variable} {own}"


def override_of(variables: Iterable[str]) -> str:
    """Return the line of a rule with which these variables are warmstart's, whatever a user sets, and what it does."""
    return (
        f"`override: [{', '.join(sorted({*variables}))}]` in the jobs' rule ends that: it takes a directory of the "
        "user's own from them, which lasts, and it does not reach what a script or a program sets later"
    )


def _seconds(timestamp: str) -> float:
    """Return a `ts` (`audit.line.timestamp`) in epoch seconds; not a number for a damaged one."""
    with suppress(ValueError):
        return datetime.fromisoformat(f"{timestamp.removesuffix('Z')}+00:00").timestamp()
    return math.nan


def in_units(counted: Counted) -> str:
    """Return the number of something that a wing counts: bytes, or times."""
    is_size = counted.name.partition(":")[0].endswith("bytes")
    return format_size(counted.times) if is_size else f"{counted.times:,}"


def _counts(tally: Tally[str]) -> tuple[Counted, ...]:
    return tuple(Counted(*item) for item in top(tally, TOP))


class _Used:
    """What became of caches, by profile and by user or period."""

    def __init__(self, uses: Tally[tuple[str, ...]]) -> None:
        """Count builds of profiles that show no hit, where they may have had some, as unknown."""
        counts = uses.items()
        seen = {profile for (use, profile, _), _ in counts if use == contract.HIT}
        blind = {profile for (use, profile, _), _ in counts if use == contract.UNKNOWN} - seen
        self.by_profile: dict[str, Counter[str]] = defaultdict(Counter)
        self.by_whose: dict[str, Counter[str]] = defaultdict(Counter)
        for (use, profile, whose), count in counts:
            known = contract.UNKNOWN if use == contract.BUILT and profile in blind else use
            self.by_profile[profile][known] += count
            self.by_whose[whose][known] += count


def _most_used(found: Mapping[str, Counter[str]], most: int) -> tuple[Uses, ...]:
    """Return the names that were used most; those that were never touched come last."""
    uses = [Uses(name, *(count[use] for use in contract.USES)) for name, count in found.items()]
    return tuple(sorted(uses, key=lambda one: (-one.hit - one.built - one.unknown, one.name))[:most])

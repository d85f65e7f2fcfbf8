"""What enforcing would have brought to jobs that were observed (`mode: observe`, docs/wings/forecast.md).

A virtual index of the images and namespaces that observed jobs would have filled: an image counts as imported by the
first job that misses it, and a namespace as filled when the first job of it that may publish has ended. Lines of many
logs may come in any order, as long as a job's prolog on a node comes before its epilog there.

A job on several nodes whose nodes have different namespaces of a profile would have been cold on all of them, where
they agree on it (docs/reference/profiles.md#seeding).

Nothing tells whether an observed job uses the tools of its profiles. Of a profile that no enforced job of the same user
has used until then, as their epilogs saw, its start is left out; where none has used it either, nobody knows, and the
report says of how many starts that holds.

What it takes for granted: every import succeeds, tags do not move, and no full disk or slow store of one node makes the
others cold. Time saved is counted as in `summary`, but without sizes: what is not in the store has none.
"""

from __future__ import annotations

from array import array
from collections import Counter
from datetime import datetime
from typing import NamedTuple

from warmstart.audit import events, values
from warmstart.audit.line import Line
from warmstart.audit.runs import EPILOG, IMPORTED, Run
from warmstart.profiles import contract
from warmstart.report.counting import Durations, percent
from warmstart.wings.forecast.events import CACHE_OBSERVED, IMAGE_OBSERVED

MADE_S = 600.0  # after which what a wing makes, and a job missed, is taken to be made
MOST_OPEN = 1 << 16  # jobs without an epilog so far, and jobs on several nodes; the oldest are judged as they are

_Namespace = tuple[str, str]  # profile, name
_Job = tuple[str, str, int]  # cluster, node, id


class Hits(NamedTuple):
    """How often a profile would have begun warm."""

    name: str
    warm: int
    cold: int
    unknown: int = 0  # of these: nobody knows whether the job used it
    unused: int = 0  # left out, for the user's enforced jobs do not use it

    @property
    def percent(self) -> str:
        """The share that would have been warm."""
        return percent(self.warm, self.warm + self.cold)


class Predicted(NamedTuple):
    """Counts for each node of each job, as the hooks would have audited them."""

    jobs: int  # prologs
    refused: int  # jobs that would have failed with a verdict
    drains: int
    imports: int
    avoided: int  # images that another job's import, or the store, would have had
    saved_s: float  # seconds; on the first node of each job
    saves_unknown: int  # images on first nodes whose import nobody has measured
    profiles: tuple[Hits, ...]
    others: tuple[Hits, ...] = ()  # what wings would have shown jobs in time, by kind


class Prediction:
    """Adds up the runs of audit logs; `result` says what they amount to."""

    def __init__(self) -> None:
        self._jobs = self._refused = self._drains = 0
        self._images: dict[str, _Image] = {}
        self._caches: dict[_Namespace, _Cache] = {}
        self._differing: dict[str, int] = {}  # profile → starts that nodes which differ make cold
        self._joint: dict[_Job, list[Line]] = {}  # what the nodes of a job agree on; the profile in place of the node
        self._is_used: dict[tuple[str, str], bool] = {}  # user and profile → whether an enforced job used it
        self._unknown, self._unused = Counter[str](), Counter[str]()  # by profile
        self._open: dict[_Job, list[tuple[_Namespace, str]]] = {}  # where each job will publish
        self._others: dict[str, dict[str, _Image]] = {}  # of wings: kind → name → what jobs wanted
        self._imports: dict[str, Durations] = {}  # by image
        self._all_imports = Durations()

    def add(self, run: Run) -> None:
        """Count one run; others than of observed jobs cost next to nothing."""
        for line in run.observed:
            self._observed(run, line)
        for harvest in run.harvests:
            whose = (run.user, harvest.profile)
            if harvest.use and (whose in self._is_used or len(self._is_used) < MOST_OPEN):
                self._is_used[whose] = self._is_used.get(whose, False) or harvest.use not in contract.UNUSED
        for image in run.images:
            if image.how == IMPORTED:
                self._imports.setdefault(image.reference, Durations()).add(image.seconds)
                self._all_imports.add(image.seconds)
        if run.hook == EPILOG and run.counts[events.HOOK_FINISHED]:
            for name, scope in self._open.pop((run.cluster, run.node, run.job), ()):
                self._caches.setdefault(name, _Cache()).filled(scope, _seconds({"ts": run.last}))

    def _observed(self, run: Run, line: Line) -> None:
        event = line["event"]
        if event == events.JOB_OBSERVED:
            self._jobs += 1
            self._refused += "refused" in line
        elif event == events.DRAIN_OBSERVED:
            self._drains += 1
        elif event == IMAGE_OBSERVED:
            self._images.setdefault(str(line.get("image")), _Image()).add(line)
        elif event == CACHE_OBSERVED:
            self._cache(run, line)
        elif not line.get("reason"):
            of_kind = self._others.setdefault(str(event).partition(".")[0], {})
            of_kind.setdefault(str(line.get("namespace")), _Image()).add(line)

    def result(self) -> Predicted:
        """Return what the lines so far amount to."""
        saved, unknown = 0.0, 0
        for name, image in self._images.items():
            seconds = self._import_seconds(name)
            if seconds is None:
                unknown += len(image.later(0.0))
            else:
                saved += seconds * len(image.later(seconds))
        for job in [*self._joint]:
            self._settle(job)
        counts = {profile: Hits(profile, 0, cold) for profile, cold in sorted(self._differing.items())}
        for (profile, _), cache in sorted(self._caches.items()):
            known, (warm, cold) = counts.get(profile, Hits(profile, 0, 0)), cache.hits()
            counts[profile] = Hits(profile, known.warm + warm, known.cold + cold)
        imports = sum(image.first is not None for image in self._images.values())
        return Predicted(
            jobs=self._jobs,
            refused=self._refused,
            drains=self._drains,
            imports=imports,
            avoided=sum(image.times for image in self._images.values()) - imports,
            saved_s=round(saved, 3),
            saves_unknown=unknown,
            profiles=tuple(
                hits._replace(unknown=self._unknown[hits.name], unused=self._unused[hits.name])
                for hits in counts.values()
            ),
            others=tuple(_in_time(kind, [*known.values()]) for kind, known in sorted(self._others.items())),
        )

    def _cache(self, run: Run, line: Line) -> None:
        name = _namespace(line)
        is_used = self._is_used.get((run.user, name[0]))
        if is_used is False:
            self._unused[name[0]] += 1
            return
        self._unknown[name[0]] += is_used is None
        if line.get("together"):
            self._joint.setdefault((run.cluster, name[0], run.job), []).append(line)
            if len(self._joint) > MOST_OPEN:
                self._settle(next(iter(self._joint)))
        else:
            self._caches.setdefault(name, _Cache()).add(line)
        if scope := line.get("publishes"):
            self._open.setdefault((run.cluster, run.node, run.job), []).append((name, str(scope)))
            if len(self._open) > MOST_OPEN:
                del self._open[next(iter(self._open))]

    def _settle(self, job: _Job) -> None:
        """Count a profile of a job whose nodes agree on it."""
        lines = self._joint.pop(job)
        if len({*map(_namespace, lines)}) > 1:
            self._differing[job[1]] = self._differing.get(job[1], 0) + len(lines)
            return
        for line in lines:
            self._caches.setdefault(_namespace(line), _Cache()).add(line)

    def _import_seconds(self, image: str) -> float | None:
        """Return the mean duration of the image's imports, else of all imports; None if there was none."""
        known = self._imports.get(image, self._all_imports)
        return known.total / known.count if known.count else None


def _in_time(kind: str, known: list[_Image]) -> Hits:
    warm = sum(len(one.later(MADE_S)) for one in known)
    return Hits(kind, warm, sum(one.heads for one in known) - warm)


class _Image:
    """One image, or one thing of a wing's: when it was first missed, and when first nodes of jobs wanted it."""

    def __init__(self) -> None:
        self.times = 0
        self.first: float | None = None
        self._found = array("d")
        self._missed = array("d")

    def add(self, line: Line) -> None:
        self.times += 1
        at = _seconds(line)
        if not line.get("found"):
            self.first = at if self.first is None else min(self.first, at)
        if line.get("head"):
            (self._found if line.get("found") else self._missed).append(at)

    @property
    def heads(self) -> int:
        """How many first nodes wanted it."""
        return len(self._found) + len(self._missed)

    def later(self, seconds: float) -> list[float]:
        """Return when first nodes would have found the image at once, if an import takes `seconds`."""
        first = self.first or 0.0
        return [*self._found, *(at for at in self._missed if at > first + seconds)]


class _Cache:
    """One namespace: when each scope would have had entries, and when jobs wanted it, by the scopes that they read."""

    def __init__(self) -> None:
        self._filled: dict[str, float] = {}
        self._wanted: dict[tuple[str, ...], array[float]] = {}
        self._warm = self._cold = 0

    def add(self, line: Line) -> None:
        if line.get("fresh"):
            self._cold += 1
        elif line.get("entries"):
            self._warm += 1
        else:
            self._wanted.setdefault(tuple(values.texts(line, "scopes")), array("d")).append(_seconds(line))

    def filled(self, scope: str, at: float) -> None:
        self._filled[scope] = min(at, self._filled.get(scope, at))

    def hits(self) -> tuple[int, int]:
        """Return how many jobs would have begun with entries, and how many without."""
        warm, cold = self._warm, self._cold
        for scopes, times in self._wanted.items():
            since = min((self._filled[scope] for scope in scopes if scope in self._filled), default=None)
            seeded = 0 if since is None else sum(at > since for at in times)
            warm, cold = warm + seeded, cold + len(times) - seeded
        return warm, cold


def _namespace(line: Line) -> _Namespace:
    return str(line.get("profile")), str(line.get("namespace"))


def _seconds(line: Line) -> float:
    """Return the time of a line in epoch seconds; 0.0 if it has none."""
    try:
        return datetime.fromisoformat(values.text(line, "ts").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0

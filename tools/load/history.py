"""The audit log as a history: what each job saw, against a small model of the store.

The model knows what was published, replaced, retired and removed, and when. An event says when something had happened,
the start of its hook when it had not; what lies in between may be seen either way, and only what is certain counts.
Of a bundle the model knows its entries only if its job made as many as the harvest says. Bundles of a job on several
nodes become visible when they are united. A compaction changes nothing that jobs see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from tools.load.judge import PROFILE, Event, Judged, Witness, caches

# A job whose prolog says one of these may have less than it has a right to.
EXCUSES = ("failures", "remarks", "traceback", "observed")
NOTHING_THERE = "nothing-published"  # the one reason to start cold that the model can judge
_HOOK_S = 600.0  # longer than any hook; for one whose start is unknown


class Place(NamedTuple):
    """A namespace of the profile."""

    scope: str
    namespace: str


UNKNOWN = Place("", "")


class Publication(NamedTuple):
    """What a harvest or a union changed in a listing, from when it may be seen and from when it must be."""

    may: float
    must: float
    job: int
    place: Place
    names: frozenset[str]  # of entries that its job made
    removed: frozenset[str]  # entries that its job removed, as it said
    is_certain: bool  # readers are given all of these from now on, and not what was removed


class Seeding(NamedTuple):
    """The start of a job on its first node."""

    job: int
    begin: float
    end: float
    partition: str
    scopes: frozenset[str]  # that it was seeded from
    is_excused: bool


class Gone(NamedTuple):
    """Something of what was published in a namespace before `until` may be gone from `since` on."""

    since: float
    until: float
    place: Place


class History:
    """What the audit and the jobs say, in the terms of the model."""

    def __init__(self, events: Sequence[Event], jobs: Mapping[int, Witness], damaged: Sequence[Gone] = ()) -> None:
        """`damaged` is what the run itself has damaged in the store."""
        self._jobs = jobs
        self._runs: dict[object, list[Event]] = {}
        for event in events:
            self._runs.setdefault(event.fields.get("run_id"), []).append(event)
        # Of a job that ran twice the output is the last run's: what the first one made nobody says.
        starts = Counter((event.job, event.fields.get("node")) for event in events if _is_start(event))
        self._ran_again = {job for (job, _), times in starts.items() if times > 1}
        self._namespaces = _namespaces(events)
        self.publications = [*self._harvested(events), *self._united(events)]
        self.seedings = self._seedings()
        self.gone = [*damaged, *_removed(events)]
        self._by_job: dict[int, list[Publication]] = {}
        self._making: dict[str, list[Publication]] = {}  # by name of an entry that a bundle has
        self._touching: dict[str, list[Publication]] = {}  # by name of an entry that later jobs may not be given
        for made in self.publications:
            self._by_job.setdefault(made.job, []).append(made)
            removed = {_name(word) for word in made.removed}
            for name in made.names | removed:
                self._making.setdefault(name, []).append(made)
            for name in removed - made.names if made.is_certain else made.names | removed:
                self._touching.setdefault(name, []).append(made)
        self._rights: dict[tuple[str, str], set[str]] = {}
        for seeding in self.seedings:
            self._rights.setdefault(self._kind(seeding), set()).update(seeding.scopes)

    def _kind(self, seeding: Seeding) -> tuple[str, str]:
        return self._jobs[seeding.job].user, seeding.partition

    def _harvested(self, events: Iterable[Event]) -> Iterable[Publication]:
        """Yield what harvests published, by the last lines of epilogs and of what they left to others."""
        for event in events:
            if event.job not in self._jobs or not _is_harvest(event):
                continue
            for cache in _harvests(event):
                if "generation" in cache:
                    yield self._publication(event, _place(cache), cache, int(str(cache["entries"])))
            if event.fields.get("failures"):  # it may have published before it failed; the next attempt does not know
                yield self._publication(event, UNKNOWN, {}, -1)._replace(must=inf)

    def _united(self, events: Sequence[Event]) -> Iterable[Publication]:
        """Yield what unions published: what the nodes of a job had handed in."""
        handed: dict[tuple[int, Place], list[Mapping[str, object]]] = {}
        for event in events:
            for cache in _harvests(event) if _is_harvest(event) else ():
                if "handed_in" in cache or cache.get("retired"):
                    handed.setdefault((event.job, _place(cache)), []).append(cache)
        for event in events:
            job = _job_of_run(event)
            if event.name != "harvest.merged" or event.fields.get("profile") != PROFILE or job not in self._jobs:
                continue
            parts = handed.get((job, _place(event.fields)), [])
            of_bundles = [cache for cache in parts if cache.get("handed_in")]
            is_whole = event.fields.get("bundles") == len(of_bundles)
            entries = sum(int(str(cache["handed_in"])) for cache in of_bundles) if is_whole else -1
            head = max(parts, key=lambda cache: int(str(cache.get("retired", 0))), default={})
            yield self._publication(event, _place(event.fields), head, entries, job)

    def _publication(
        self, event: Event, place: Place, cache: Mapping[str, object], entries: int, job: int = 0
    ) -> Publication:
        """`entries`: how many the bundles have, as far as the log knows."""
        job = job or event.job
        said = self._jobs[job].said
        made = frozenset(map(_name, said.made))
        is_certain = entries == len(made) and said.is_whole and job not in self._ran_again
        replaced = int(str(cache.get("retired", 0))) + int(str(cache.get("changed", 0)))
        is_certain = is_certain and replaced in (0, len(said.removed))
        removed = said.removed if replaced or not is_certain else frozenset[str]()
        return Publication(self._began(event), event.at, job, place, made, removed, is_certain)

    def _began(self, event: Event) -> float:
        run = self._runs[event.fields.get("run_id")]
        return min((other.at for other in run if other.name == "hook.started"), default=event.at - _HOOK_S)

    def _seedings(self) -> list[Seeding]:
        """Return the last prolog of each job on its first node, which another run may have had elsewhere."""
        found: dict[int, Seeding] = {}
        for run in self._runs.values():
            first = run[0]
            if not _is_start(first) or first.job not in self._jobs:
                continue
            ends = [event for event in run if event.name == "hook.finished"]
            if not ends or not ends[0].fields.get("head"):
                continue  # killed; or not the first node, whose word is what a job says of entries
            seeded = [cache for cache in caches(ends[0]) if cache["profile"] == PROFILE]
            is_cold = any(cache.get("cold", NOTHING_THERE) != NOTHING_THERE for cache in seeded)
            is_excused = not seeded or is_cold or any(ends[0].fields.get(part) for part in EXCUSES)
            scopes = frozenset(str(scope) for cache in seeded for scope in _list(cache.get("scopes")))
            partition = str(first.fields.get("partition"))
            found[first.job] = Seeding(first.job, first.at, ends[0].at, partition, scopes, is_excused)
        return list(found.values())

    def wrong(self) -> tuple[list[str], list[str]]:
        """Return what jobs saw that they should not have, and what they missed that they had a right to."""
        seen, missed = [], []
        for seeding in self.seedings:
            saw = self._jobs[seeding.job].said.saw
            seen += [text for word in sorted(saw) if (text := self._seen(seeding, word))]
            missed += self._missed(seeding, set(map(_name, saw)))
        return seen, missed

    def _seen(self, seeding: Seeding, word: str) -> str:
        """Return why a job should not have seen an entry, "" if it may have."""
        name, maker = _name(word), int(word.split()[2])
        who = f"job {seeding.job} saw {word}"
        published = [made for made in self._by_job.get(maker, []) if made.may <= seeding.end]
        is_known = maker not in self._ran_again and maker in self._jobs and self._jobs[maker].said.is_whole
        visible = [made for made in published if name in made.names]
        if not visible:  # a job that was ended, or ran again, does not say all that it made
            return "" if not is_known and published else f"{who}, which nobody had published"
        hiding = [self._hiding(word, made, seeding) for made in visible]
        return f"{who}, of which job {hiding[0][0].job} had taken the place" if all(hiding) else ""

    def _hiding(self, word: str, made: Publication, seeding: Seeding) -> list[Publication]:
        """Return what has certainly taken the place of an entry, or of its removal, before a job's start."""
        return [
            other
            for other in self._making.get(_name(word), [])
            if other.is_certain and other.job != made.job and other.place == made.place
            and (_name(word) in other.names or word in other.removed)
            and other.must < seeding.begin and other.may > made.must
            and not any(self._is_gone(gone, other, seeding) for gone in self.gone)
        ]  # fmt: skip

    def _missed(self, seeding: Seeding, saw: set[str]) -> list[str]:
        """Return the entries that a job should have seen in some version."""
        if seeding.is_excused or not self._jobs[seeding.job].said.is_whole:
            return []
        rights, namespaces = self._rights[self._kind(seeding)], self._namespaces.get(seeding.job, set())
        missed = []
        for made in self.publications:
            is_offered = made.place.scope in rights and made.place.namespace in namespaces
            if is_offered and made.is_certain and made.must < seeding.begin:
                names = made.names - saw
                missed += [(name, made) for name in sorted(names) if not self._may_be_gone(name, made, seeding)]
        return [f"job {seeding.job} did not see {name}, which job {made.job} had published" for name, made in missed]

    def _may_be_gone(self, name: str, made: Publication, seeding: Seeding) -> bool:
        """Return whether an entry may have been retired or removed by the time of a job's start.

        What a user's own scope hides of another one it hides for good, also of what is published there later.
        """
        return any(self._is_gone(gone, made, seeding) for gone in self.gone) or any(
            other.job != made.job
            and other.may <= seeding.end
            and (made.may <= other.must or (other.place != made.place and other.place.scope.startswith("user-")))
            for other in self._touching.get(name, [])
        )

    @staticmethod
    def _is_gone(gone: Gone, made: Publication, seeding: Seeding) -> bool:
        return gone.place == made.place and made.may <= gone.until and gone.since <= seeding.end


def _name(word: str) -> str:
    """Return the name in what a job says of an entry."""
    return word.split(maxsplit=1)[0]


def _place(fields: Mapping[str, object]) -> Place:
    return Place(str(fields.get("scope", "")), str(fields.get("namespace", "")))


def _is_start(event: Event) -> bool:
    return event.name == "hook.started" and event.fields.get("hook") == "prolog"


def _is_harvest(event: Event) -> bool:
    return event.name == "harvest.finished" or (event.name == "hook.finished" and event.fields.get("hook") == "epilog")


def _harvests(event: Event) -> list[Mapping[str, object]]:
    """Return what a line says of the profile's harvests: of a job's step images, too."""
    return [cache for cache in caches(event) if cache["profile"] == PROFILE and "entries" in cache]


def _job_of_run(event: Event) -> int:
    """Return the job of the run that a union is of: `uid.cluster.job.restarts`."""
    parts = str(event.fields.get("run", "")).split(".")
    return int(parts[-2]) if len(parts) > 3 else 0


def _namespaces(events: Iterable[Event]) -> dict[int, set[str]]:
    """Return the namespaces of each job: a job in an image has another one than a job without."""
    found: dict[int, set[str]] = {}
    for event in events:
        for cache in caches(event):
            if cache["profile"] == PROFILE and "namespace" in cache:
                found.setdefault(event.job, set()).add(str(cache["namespace"]))
    return found


def _removed(events: Iterable[Event]) -> list[Gone]:
    """Return what maintenance took out of listings: when it began nobody says."""
    names = {"bundle.removed", "bundle.damaged", "entries.removed"}
    return [Gone(event.at - _HOOK_S, event.at, _place(event.fields)) for event in events if event.name in names]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def judged(events: Sequence[Event], jobs: Mapping[int, Witness], damaged: Sequence[Gone] = ()) -> list[Judged]:
    """Judge what jobs saw and missed."""
    history = History(events, jobs, damaged)
    seen, missed = history.wrong()
    saw = sum(len(jobs[seeding.job].said.saw) for seeding in history.seedings)
    known = sum(not seeding.is_excused for seeding in history.seedings)
    return [
        Judged("entries that jobs saw had been published, and were not superseded", saw, seen),
        Judged("starts of jobs that missed nothing they had a right to", known, missed),
    ]

"""The audit log as a history: what each job saw, against a small model of the store.

The model knows what was published, superseded, retired and removed, and when. An event says when something had
happened, the start of its hook when it had not; what lies in between may be seen either way, and only what is certain
counts. Of a bundle the model knows its entries only if its job made as many as the harvest says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tools.load.judge import PROFILE, Event, Judged, Witness, caches, published

COMPACTED = "replaced by a compacted bundle"
# A job whose prolog says one of these may have less than it has a right to.
EXCUSES = ("failures", "remarks", "traceback", "observed")
_HOOK_S = 600.0  # longer than any hook; for one whose start is unknown


class Publication(NamedTuple):
    """A bundle, from when it may be seen and from when it must be."""

    may: float
    must: float
    job: int
    scope: str
    namespace: str
    bundle: str
    names: frozenset[str]  # of entries that its job made
    takes: frozenset[str]  # of entries whose older versions it hides
    is_certain: bool  # it has all of these


class Seeding(NamedTuple):
    """The start of a job on a node."""

    job: int
    begin: float
    end: float
    partition: str
    scopes: frozenset[str]  # that it was seeded from
    namespaces: frozenset[str]  # likewise: a job in an image has another one than a job without
    is_excused: bool


class Gone(NamedTuple):
    """Bundles of a scope that were removed at `at`."""

    at: float
    scope: str


class History:
    """What the audit and the jobs say, in the terms of the model."""

    def __init__(self, events: Sequence[Event], jobs: Mapping[int, Witness]) -> None:
        self._jobs = jobs
        runs: dict[object, list[Event]] = {}
        for event in events:
            runs.setdefault(event.fields.get("run_id"), []).append(event)
        self.publications = [
            self._publication(event, cache, runs[event.fields.get("run_id")])
            for event in events
            if event.job in self._jobs
            for cache in published(event)
            if cache["profile"] == PROFILE
        ]
        self.seedings = self._seedings(runs.values())
        self.gone = _gone(events)
        # Of a job that ran twice the output is the last run's: what the first one made nobody says.
        starts = Counter((event.job, event.fields.get("node")) for event in events if _is_start(event))
        self._ran_again = {job for (job, _), times in starts.items() if times > 1}
        self._by_job: dict[int, list[Publication]] = {}
        self._touching: dict[str, list[Publication]] = {}  # by name of an entry of which a bundle may hide others
        for made in self.publications:
            self._by_job.setdefault(made.job, []).append(made)
            for name in self._touched(made):
                self._touching.setdefault(name, []).append(made)
        self._rights: dict[tuple[str, str], set[str]] = {}
        for seeding in self.seedings:
            self._rights.setdefault(self._kind(seeding), set()).update(seeding.scopes)

    def _kind(self, seeding: Seeding) -> tuple[str, str]:
        return self._jobs[seeding.job].user, seeding.partition

    def _publication(self, event: Event, cache: Mapping[str, object], run: Sequence[Event]) -> Publication:
        began = min((other.at for other in run if other.name == "hook.started"), default=event.at - _HOOK_S)
        said = self._jobs[event.job].said
        made, removed = (frozenset(word.split()[0] for word in words) for words in (said.made, said.removed))
        is_harvest = "known" in cache  # else it is what others had handed in
        is_certain = is_harvest and cache["entries"] == len(made) and said.is_whole
        superseding = cache.get("superseding")
        takes = removed if superseding else frozenset[str]()
        is_certain = is_certain and superseding in (0, len(removed))
        place = (str(cache["scope"]), str(cache["namespace"]), str(cache["bundle"]))
        return Publication(began, event.at, event.job, *place, made, takes, is_certain)

    def _seedings(self, runs: Iterable[list[Event]]) -> list[Seeding]:
        """Return the last prolog of each job on its first node, which another run may have had elsewhere."""
        found: dict[int, Seeding] = {}
        for run in runs:
            first = run[0]
            if first.name != "hook.started" or first.fields.get("hook") != "prolog" or first.job not in self._jobs:
                continue
            ends = [event for event in run if event.name == "hook.finished"]
            if not ends or not ends[0].fields.get("head"):
                continue  # killed; or not the first node, whose word is what a job says of entries
            seeded = [cache for cache in caches(ends[0]) if cache["profile"] == PROFILE]
            is_cold = any(not cache.get("warm") for cache in seeded)
            is_excused = is_cold or any(ends[0].fields.get(part) for part in EXCUSES)
            scopes = frozenset(str(scope) for cache in seeded for scope in _list(cache.get("scopes")))
            namespaces = frozenset(str(cache["namespace"]) for cache in seeded if "namespace" in cache)
            partition = str(first.fields.get("partition"))
            seeding = Seeding(first.job, first.at, ends[0].at, partition, scopes, namespaces, is_excused)
            found[first.job] = seeding
        return list(found.values())

    def wrong(self) -> tuple[list[str], list[str]]:
        """Return what jobs saw that they should not have, and what they missed that they had a right to."""
        seen, missed = [], []
        for seeding in self.seedings:
            saw = self._jobs[seeding.job].said.saw
            seen += [text for word in sorted(saw) if (text := self._seen(seeding, word))]
            missed += self._missed(seeding, {word.split()[0] for word in saw})
        return seen, missed

    def _seen(self, seeding: Seeding, word: str) -> str:
        """Return why a job should not have seen an entry, "" if it may have."""
        name, _, maker = word.split()
        who = f"job {seeding.job} saw {word}"
        own = [made for made in self._by_job.get(int(maker), []) if name in made.names]
        visible = [made for made in own if made.may <= seeding.end]
        if not visible and int(maker) in self._ran_again:
            return ""
        if not visible:
            return f"{who}, which nobody had published"
        hidden = [
            other
            for made in visible
            for other in self._touching.get(name, [])
            if other.is_certain and name in other.takes
            and (other.scope, other.namespace) == (made.scope, made.namespace)
            and other.must < seeding.begin and other.may > made.must
        ]  # fmt: skip
        return f"{who}, of which job {hidden[0].job} had taken the place" if len(hidden) >= len(visible) else ""

    def _missed(self, seeding: Seeding, saw: set[str]) -> list[str]:
        """Return the entries that a job should have seen in some version."""
        if seeding.is_excused or not self._jobs[seeding.job].said.is_whole:
            return []
        rights = self._rights[self._kind(seeding)]
        missed = []
        for made in self.publications:
            is_offered = made.scope in rights and made.namespace in seeding.namespaces
            if is_offered and made.is_certain and made.must < seeding.begin:
                names = made.names - saw
                missed += [(name, made) for name in sorted(names) if not self._may_be_gone(name, made, seeding)]
        return [f"job {seeding.job} did not see {name}, which job {made.job} had published" for name, made in missed]

    def _may_be_gone(self, name: str, made: Publication, seeding: Seeding) -> bool:
        """Return whether an entry may have been retired or removed by the time of a job's start.

        What a user's own scope hides of another one it hides for good, also of what is published there later.
        """
        return any(gone.scope == made.scope and gone.at <= seeding.end for gone in self.gone) or any(
            other.job != made.job
            and other.may <= seeding.end
            and (made.may <= other.must or (other.scope != made.scope and other.scope.startswith("user-")))
            for other in self._touching.get(name, [])
        )

    def _touched(self, made: Publication) -> frozenset[str]:
        """Return the entries whose other versions a bundle may hide."""
        said = self._jobs[made.job].said
        return made.takes if made.is_certain else frozenset(word.split()[0] for word in said.made | said.removed)


def _is_start(event: Event) -> bool:
    return event.name == "hook.started" and event.fields.get("hook") == "prolog"


def _gone(events: Iterable[Event]) -> list[Gone]:
    return [
        Gone(event.at - _HOOK_S, str(event.fields.get("scope", "")))
        for event in events
        if event.name in {"bundle.removed", "bundle.damaged"} and event.fields.get("reason") != COMPACTED
    ]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def judged(events: Sequence[Event], jobs: Mapping[int, Witness]) -> list[Judged]:
    """Judge what jobs saw and missed."""
    history = History(events, jobs)
    seen, missed = history.wrong()
    saw = sum(len(jobs[seeding.job].said.saw) for seeding in history.seedings)
    known = sum(not seeding.is_excused for seeding in history.seedings)
    return [
        Judged("entries that jobs saw had been published, and were not superseded", saw, seen),
        Judged("starts of jobs that missed nothing they had a right to", known, missed),
    ]

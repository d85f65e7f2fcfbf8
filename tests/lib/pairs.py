"""Pairs of operations in every order (tests/lib/interleave): what a pair is judged by, and how it is run.

Root's workers run in the same process, and a bundle is a JSON text of its entries' versions in place of a squashfs:
what is interleaved is all that touches the store. Everything else is the real code, `repack` included.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.lib.interleave import TO_THE_END, Actor, Run, Schedule, Stage, Step, Touch, play, restore
from warmstart.caches.store import client as caches
from warmstart.caches.store.gc import Merger
from warmstart.caches.store.layout import Entries, Namespace
from warmstart.caches.store.listing import Row
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.images.store import client as image_client
from warmstart.maintenance import repack
from warmstart.session import Session
from warmstart.store import client
from warmstart.store.client import StoreClient

ME = Identity("me", os.getuid(), os.getgid())
State = Mapping[str, str]  # what is promised → its version
Known = dict[object, dict[str, str]]  # what was fetched before
Seen = list[tuple[State, tuple[bool, bool]]]  # what was seen after each part, and which operations had ended then
TEMPLATE = "template"
LATE = ("directory of", "metadata of")  # what is right at the end only


class Operation(NamedTuple):
    """One operation. It may read, too: then it returns what it saw."""

    act: Callable[[StoreClient], object]
    removes: bool = False  # what somebody may just want
    holds: bool = False  # what it returns is promised: it is so at the end, too
    reads: bool = False  # it returns what readers see
    merges: bool = False  # bundles into others


class Group(NamedTuple):
    """Operations on one part of the store."""

    make: Callable[[StoreClient], object]  # the template
    operations: Mapping[str, Operation]
    observe: Callable[[StoreClient, Known], State]
    settle: Callable[[StoreClient], object]  # what comes next of itself: after an old view
    tidy: Callable[[StoreClient], object]  # what maintenance does
    may_return: bool = False  # what was there, and was not, may be there again


def memory(data: bytes) -> int:
    """Return a descriptor of a file with these bytes."""
    fd = os.memfd_create("bundle")
    os.write(fd, data)
    return fd


class Failure(NamedTuple):
    """What is wrong after a schedule."""

    pair: tuple[str, str]
    schedule: Schedule
    problem: str
    trace: list[Step]

    def __str__(self) -> str:
        text = [f"{self.pair[0]} beside {self.pair[1]}: {self.problem}", f"  {self.schedule}"]
        last = ""
        for step in self.trace:
            if step.actor != last:
                text.append(f"  {step.actor}:")
                last = step.actor
            text.append(f"    {step.call} {step.path} {step.remark}".rstrip())
        return "\n".join(text)


class Explorer:
    """The pairs of one group, each in its orders."""

    def __init__(self, top: Path, group: Group) -> None:
        self._group = group
        self._template, self._stage = top / TEMPLATE, top / "stage"
        for path in (self._template, self._stage):
            path.mkdir(mode=0o755)
        self.stage = Stage(str(self._stage))
        with in_process():
            self._observer = StoreClient(ME, str(self._stage), "")
            group.make(StoreClient(ME, str(self._template), "n0-template"))
        self.schedules = 0
        self._known: Known = {}

    def _acts(self, pair: Sequence[str]) -> list[tuple[str, Callable[[], object]]]:
        names = pair if pair[0] != pair[1] else (pair[0], f"{pair[1]} (2)")
        acts: list[tuple[str, Callable[[], object]]] = []
        for number, (name, operation) in enumerate(zip(names, pair, strict=True)):
            store = StoreClient(ME, str(self._stage), f"n{number + 1}-run{number + 1}")
            acts.append((name, partial(self._group.operations[operation].act, store)))
        return acts

    def play(self, pair: Sequence[str], schedule: Schedule, footprints: Sequence[frozenset[Touch]]) -> tuple[Run, Seen]:
        """Run one schedule; return what was seen after each part, and which operations had ended then."""
        restore(self._template, self._stage)
        self.stage.begin()
        seen = [(self._group.observe(self._observer, self._known), (False, False))]

        def watch(actors: Sequence[Actor]) -> None:
            seen.append((self._group.observe(self._observer, self._known), (actors[0].ended, actors[1].ended)))

        run = play(self.stage, self._acts(pair), schedule, footprints, watch)
        if schedule.view:
            self._group.settle(self._observer_that_writes())
            seen.append((self._group.observe(self._observer, self._known), (True, True)))
        return run, seen

    def _observer_that_writes(self) -> StoreClient:
        return StoreClient(ME, str(self._stage), "n0-settles")

    def learn(self, pair: tuple[str, str]) -> Learnt:
        """Run a pair one after the other, both ways."""
        none = frozenset[Touch]()
        serial = [self.play(pair, Schedule(first, TO_THE_END), (none, none)) for first in (0, 1)]
        touched = [none.union(*(run.actors[number].touched for run, _ in serial)) for number in (0, 1)]
        return Learnt(touched, Rules(self._group, pair, [seen for _, seen in serial], [run for run, _ in serial]))

    def explore(
        self,
        pair: tuple[str, str],
        chosen: Callable[[Schedule], bool] = lambda _: True,
        learnt: Learnt | None = None,
        enough: int = 1_000_000,
    ) -> list[Failure]:
        """Run all orders of a pair that are `chosen`; return what is wrong, the shortest first.

        `learnt` is of the same pair, if it should be of other code. Ends when `enough` is wrong.
        """
        footprints, rules = learnt or self.learn(pair)
        failures: list[Failure] = []
        for schedule, run, seen in self._runs(pair, footprints, chosen):
            if problem := rules.problem(run, seen, schedule):
                failures.append(Failure(pair, schedule, problem, list(run.trace)))
                if len(failures) == enough:
                    break
        return sorted(failures, key=lambda failure: failure.schedule.length)

    def _runs(
        self, pair: tuple[str, str], footprints: Sequence[frozenset[Touch]], chosen: Callable[[Schedule], bool]
    ) -> Iterator[tuple[Schedule, Run, Seen]]:
        """Yield the schedules that happen: those one after the other, with switches, and with old views."""
        for first in (0, 1):
            calls, others = (self._count(pair, footprints, number) for number in (first, 1 - first))
            ranges = [[Schedule(first, call, other) for other in range(1, others)] for call in range(1, calls)]
            ranges += [[Schedule(first, call, TO_THE_END, view) for view in range(1, 20)] for call in range(calls)]
            ranges += [[Schedule(first, call)] for call in range(1, calls)]
            for schedules in ([Schedule(first, TO_THE_END)], *ranges):
                for schedule in filter(chosen, schedules):
                    run, seen = self.play(pair, schedule, footprints)
                    if not run.happened:  # nor do those after it
                        break
                    self.schedules += 1
                    yield schedule, run, seen

    def _count(self, pair: tuple[str, str], footprints: Sequence[frozenset[Touch]], number: int) -> int:
        """Return how many calls of an operation count, at most a few more than when it runs alone."""
        run, _ = self.play(pair, Schedule(number, TO_THE_END), footprints)
        return run.actors[number].counted + 4


class Learnt(NamedTuple):
    """What runs of a pair one after the other tell."""

    footprints: list[frozenset[Touch]]  # of each
    rules: Rules


class Rules:
    """What must hold for a pair, by what holds when one comes after the other."""

    def __init__(self, group: Group, pair: tuple[str, str], serial: Sequence[Seen], runs: Sequence[Run]) -> None:
        chosen = [group.operations[name] for name in pair]
        self._may_return = group.may_return
        self._removes = any(operation.removes for operation in chosen)
        self._holding = {number for number, operation in enumerate(chosen) if operation.holds}
        self._reading = {number for number, operation in enumerate(chosen) if operation.reads}
        self._start = serial[0][0][0]
        self._alone = [serial[0][1][0], serial[1][1][0]]  # after the one, after the other
        # Who removes a bundle by its name does not remove what was merged into another one before.
        self._merges = self._removes and any(operation.merges for operation in chosen)
        self._merged = [self._alone[number] for number in (0, 1) if self._merges and chosen[number].merges]
        self._both = [serial[0][-1][0], serial[1][-1][0], *self._merged]
        for run in runs:
            for actor in run.actors:
                assert actor.error is None or isinstance(actor.error, WarmstartError), actor.error

    def problem(self, run: Run, seen: Seen, schedule: Schedule) -> str:
        """Return what is wrong after a run, "" if nothing is."""
        failed = [isinstance(actor.error, WarmstartError) for actor in run.actors]
        for actor in run.actors:
            if actor.error is not None and not isinstance(actor.error, WarmstartError):
                return f"{actor.name} ended with {actor.error!r}"
        is_after = schedule.view and not schedule.calls  # the other one had ended
        finals = [self._both[1 - schedule.first], *self._merged] if is_after else list(self._both)
        if any(failed):  # an operation that says that it failed promised nothing
            finals += self._without(failed)
        last = seen[-1][0]
        # A bundle that is removed and one that has some of it by now are two things: each entry for itself.
        is_mixed = self._merges and all(value in [one.get(key) for one in finals] for key, value in last.items())
        if last not in finals and not is_mixed:
            return f"readers see {_differences(last, finals)} at the end"
        everything = [self._start, *self._alone, *finals]
        return self._on_the_way(seen, everything, schedule, failed) or self._told(run, last, everything)

    def _without(self, failed: list[bool]) -> list[State]:
        """Return what may be at last if operations have failed: the state without one of them, or without both."""
        states = [self._alone[1 - number] for number in (0, 1) if failed[number]]
        return [*states, self._start] if all(failed) else states

    def _on_the_way(self, seen: Seen, everything: list[State], schedule: Schedule, failed: list[bool]) -> str:
        for number, (state, ended) in enumerate(seen):
            possible = everything
            if not schedule.view and not any(failed) and any(ended):
                possible = [self._alone[one] for one in (0, 1) if ended[one]] + self._both
            for entry in {*state, *(key for one in possible for key in one)}:
                # Who removes a bundle takes its manifest first: until the index is written, readers find it gone.
                is_going = self._removes and not all(ended) and state.get(entry) is None
                if entry.startswith(LATE) or is_going:
                    continue
                if state.get(entry) not in [one.get(entry) for one in possible]:
                    return f"readers see {entry}={state.get(entry)} after part {number}"
        for entry in {key for state, _ in seen for key in state}:
            back = _comes_back([state.get(entry) for state, _ in seen])
            if back is not None and not self._may_return and not (self._removes and back == self._start.get(entry)):
                return f"{entry}={back} comes back"
        return ""

    def _told(self, run: Run, last: State, everything: list[State]) -> str:
        for number, actor in enumerate(run.actors):
            told = actor.result if isinstance(actor.result, dict) else {}
            if number in self._holding:
                for entry, value in told.items():
                    if last.get(entry) not in (value, *([None] if self._removes else [])):
                        return f"{actor.name} was told {entry}={value}, which is {last.get(entry)}"
            if number in self._reading and actor.error is None:
                for entry in {*told, *(key for one in everything for key in one)}:
                    value = told.get(entry)
                    if value not in [one.get(entry) for one in everything] and not (value is None and self._removes):
                        return f"{actor.name} sees {entry}={value}"
        return ""


def _differences(state: State, finals: Sequence[State]) -> str:
    texts = []
    for final in finals:
        keys = {key for key in {*state, *final} if state.get(key) != final.get(key)}
        texts.append(", ".join(f"{key}={state.get(key)} for {final.get(key)}" for key in sorted(keys)))
    return " / ".join(dict.fromkeys(texts))


def _comes_back(values: Sequence[str | None]) -> str | None:
    """Return the value that was there, was not, and is there again."""
    changes = [value for number, value in enumerate(values) if number == 0 or values[number - 1] != value]
    return next(
        (value for number, value in enumerate(changes) if value in changes[:number] and value is not None), None
    )


@contextmanager
def in_process() -> Iterator[None]:
    """Have workers run here, and bundles be texts, for a `with`."""

    @contextmanager
    def packed(
        session: Session, where: Namespace, parts: Merger, deadline: Deadline
    ) -> Iterator[tuple[int, list[Row], Entries]]:
        content: dict[str, str] = {}
        entries: Entries = {}
        for row, names in zip(parts.rows, parts.names, strict=True):
            fd = os.memfd_create("bundle")
            files = caches.fetch(session.store, where, row, deadline, into=fd)
            text = json.loads(os.pread(fd, 1 << 20, 0))
            os.close(fd)
            content.update({entry: text[entry] for entry in names})
            entries.update({entry: files[entry] for entry in names})
        fd = memory(json.dumps(content).encode())
        try:
            yield fd, parts.rows, entries
        finally:
            os.close(fd)

    with ExitStack() as patches:
        for module in (client, image_client):
            patches.enter_context(mock.patch.object(module, "Worker", InProcess))
        patches.enter_context(mock.patch.object(repack, "_packed", packed))
        yield


class InProcess:
    """In a worker's place: runs functions here."""

    def __init__(self, identity: Identity, *_: object, **__: object) -> None:
        self.identity = identity

    def run(self, _deadline: object, function: Callable[..., Any], *args: Any, **kw: Any) -> Any:  # noqa: ANN401
        """Run a function."""
        return function(*args, **kw)

    def keeping(self, *_: int) -> InProcess:
        """Return itself: there is one process."""
        return self

    def _replace(self, **_: object) -> InProcess:
        return self

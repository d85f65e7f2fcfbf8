"""The loop: who has the next turn, what ends it, and what is left for others. And the kinds that there are."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest

from tests.lib.node import NODE, Node
from warmstart import errand, wing
from warmstart.entry import background
from warmstart.errand import KEPT_S, Errand, Errands, Kind
from warmstart.errands import loop, registry
from warmstart.errands.loop import DONE, LATER, MORE, Outcome, Turn, Work, run
from warmstart.host import process
from warmstart.host.identity import WorkerSilent
from warmstart.session import Session, open_session
from warmstart.wing import Wing


class Wish(NamedTuple):
    """What is to be done."""

    text: str = ""


OTHER = Kind("polishes")
KIND = Kind("wishes", most=9, backoff_s=60.0)
PATIENT = Kind("patient")


@pytest.fixture
def session(node: Node) -> Iterator[Session]:
    with open_session(node.installation, "background", NODE) as session:
        yield session


def ask(session: Session, kind: Kind, *keys: str) -> Errands:
    """Ask for errands, each of the owner that its key begins with, one a second."""
    errands = Errands(session.paths, kind)
    for number, key in enumerate(keys):
        errands.put(Errand(key[0], int(time.time()) - 100 + number, 0, key), Wish())
    return errands


def listing(turns: list[str], then: Callable[[Turn], Outcome] = lambda _: DONE) -> Callable[[Turn], Outcome]:

    def do(turn: Turn) -> Outcome:
        turns.append(turn.errand.key)
        return then(turn)

    return do


def test_what_is_done_is_gone(session: Session) -> None:
    errands = ask(session, KIND, "a1", "a2")
    turns: list[str] = []
    work = Work(KIND, listing(turns, lambda turn: DONE if turn.errand.key == "a1" else LATER))
    assert (run(session, work), run(session, work)) == (1, 0)
    assert turns == ["a1", "a2"]
    assert [(item.key, item.attempts) for item in errands.all()] == [("a2", 1)]


def test_owners_take_turns(session: Session) -> None:
    """Whoever has had least time is next, of an owner's errands the one that has had least; new ones come in."""
    errands = ask(session, PATIENT, "a1", "a2", "b1")
    turns: list[str] = []
    left = {"a1": 3, "a2": 1, "b1": 2, "c1": 1}

    def then(turn: Turn) -> Outcome:
        if len(turns) == 2:
            errands.put(Errand("c", int(time.time()), 0, "c1"), Wish())
        left[turn.errand.key] -= 1
        return MORE if left[turn.errand.key] else DONE

    assert run(session, Work(PATIENT, listing(turns, then))) == 4
    assert turns[:3] == ["a1", "b1", "c1"]
    assert turns.index("a2") < len(turns) - 1 - turns[::-1].index("a1")
    assert errands.all() == []


def test_a_failure_keeps_no_other(session: Session, node: Node) -> None:
    """It is audited under the kind's step, and has no other turn in this process."""
    errands = ask(session, PATIENT, "a1", "a2")
    turns: list[str] = []

    def then(turn: Turn) -> Outcome:
        if turn.errand.key == "a1":
            raise OSError(5, "input/output error")
        return DONE

    assert run(session, Work(PATIENT, listing(turns, then), step="release")) == 1
    assert turns == ["a1", "a2"]
    assert [item.key for item in errands.all()] == ["a1"]
    assert [failure.fields["part"] for failure in session.failures] == ["patient of a1"]
    session.audit.finish(outcome="ok", duration_ms=0)
    assert [event["step"] for event in node.failures()] == ["release"]


def test_a_silent_process_ends_its_owners_turns(session: Session) -> None:
    """It would not answer for the next one either, and each costs a deadline."""
    ask(session, PATIENT, "a1", "a2", "b1")
    turns: list[str] = []

    def then(turn: Turn) -> Outcome:
        if turn.errand.key == "a1":
            raise WorkerSilent(what="look", problem="no answer")
        return DONE

    assert run(session, Work(PATIENT, listing(turns, then))) == 1
    assert turns == ["a1", "b1"]


def test_an_owners_time_has_a_bound(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner has a bound in one process, which a turn is told; the rest waits."""
    clock = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    ask(session, PATIENT, "a1", "a2", "a3", "b1")
    turns: list[str] = []
    left: list[float] = []

    def then(turn: Turn) -> Outcome:
        clock[0] += 40
        left.append(turn.left_s)
        return MORE

    assert run(session, Work(PATIENT, listing(turns, then), owner_s=100.0)) == 0
    assert turns == ["a1", "b1", "a2", "b1", "a3", "b1"]
    assert left == [100, 100, 60, 60, 20, 20]


def test_one_process_of_a_node_does_a_kind(session: Session) -> None:
    """Another one ends at once, also where a kind says that it may not begin."""
    ask(session, PATIENT, "a1")
    turns: list[str] = []
    work = Work(PATIENT, listing(turns))
    with errand.at_work(session.paths, PATIENT.name):
        assert run(session, work) == 0
    assert run(session, work._replace(enter=lambda _: False)) == 0
    assert turns == []
    assert run(session, work) == 1


def test_what_was_withdrawn_is_not_begun(session: Session) -> None:
    errands = ask(session, KIND, "a1")
    turns: list[str] = []

    def due(session: Session, kind: Kind) -> list[Errand]:
        found = loop.waiting_here(session, kind)
        errands.drop("a1")
        return found

    assert run(session, Work(KIND, listing(turns), due=due)) == 0
    assert turns == []


def test_each_kind_is_done() -> None:
    assert {kind: registry.load(kind).kind.name for kind in registry.kinds()} == {k: k for k in registry.kinds()}


def test_a_wing_may_have_kinds(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its declaration names them, so that the file with the work is loaded for these alone."""
    done: list[str] = []

    def polish(turn: Turn) -> Outcome:
        done.append(turn.errand.key)
        return DONE

    monkeypatch.setattr(wing, "found", lambda: {"polish": Wing("polishes shoes", errands=(OTHER.name,))})
    monkeypatch.setattr(process, "be_idle", lambda: None)
    module = ModuleType("warmstart.wings.polish.errands")
    vars(module)["WORK"] = {OTHER.name: Work(OTHER, polish)}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    Path(node.paths.state).mkdir(parents=True)
    Errands(node.paths, OTHER).put(Errand("1", int(time.time()), 0, "left"), Wish("shoe"))
    assert background.main(node.installation.prefix, [OTHER.name, NODE]) == 0
    assert done == ["left"]
    assert Errands(node.paths, OTHER).all() == []


def test_what_nothing_does_any_more_stays_a_day(node: Node) -> None:
    Path(node.paths.root).mkdir(parents=True)
    errands = Errands(node.paths, OTHER)
    for key, age in (("new", 0), ("old", KEPT_S + 5)):
        errands.put(Errand("2001", int(time.time() - age), 0, key), Wish("shoe"))
    with open_session(node.installation, "maintain", NODE) as session:
        registry.drop_unknown(session)
    assert [item.key for item in errands.all()] == ["new"]

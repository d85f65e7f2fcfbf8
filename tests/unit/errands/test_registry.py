"""The kinds of errands that there are, and what becomes of those that nothing does any more."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from tests.lib.node import NODE, Node
from warmstart import wing
from warmstart.entry import background
from warmstart.errand import KEPT_S, Errand, Errands, Kind
from warmstart.errands import registry
from warmstart.errands.loop import DONE, Outcome, Turn, Work
from warmstart.host import process
from warmstart.session import open_session
from warmstart.wing import Wing


class Wish(NamedTuple):
    """What is to be done."""

    text: str


KIND = Kind("polishes")


def test_each_kind_is_done() -> None:
    assert {kind: registry.load(kind).kind.name for kind in registry.kinds()} == {k: k for k in registry.kinds()}


def test_a_wing_may_have_kinds(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its declaration names them, so that the file with the work is loaded for these alone."""
    done: list[str] = []

    def polish(turn: Turn) -> Outcome:
        done.append(turn.errand.key)
        return DONE

    monkeypatch.setattr(wing, "found", lambda: {"polish": Wing("polishes shoes", errands=(KIND.name,))})
    monkeypatch.setattr(process, "be_idle", lambda: None)
    module = ModuleType("warmstart.wings.polish.errands")
    vars(module)["WORK"] = {KIND.name: Work(KIND, polish)}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    Path(node.paths.state).mkdir(parents=True)
    Errands(node.paths, KIND).put(Errand("1", int(time.time()), 0, "left"), Wish("shoe"))
    assert background.main(node.installation.prefix, [KIND.name, NODE]) == 0
    assert done == ["left"]
    assert Errands(node.paths, KIND).all() == []


def test_what_nothing_does_any_more_stays_a_day(node: Node) -> None:
    Path(node.paths.root).mkdir(parents=True)
    errands = Errands(node.paths, KIND)
    for key, age in (("new", 0), ("old", KEPT_S + 5)):
        errands.put(Errand("2001", int(time.time() - age), 0, key), Wish("shoe"))
    with open_session(node.installation, "maintain", NODE) as session:
        registry.drop_unknown(session)
    assert [item.key for item in errands.all()] == ["new"]

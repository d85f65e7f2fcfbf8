"""How nodes agree: all of them, in one process, on one store."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import cast

import pytest

from tests.lib.image_site import InlineWorker
from warmstart.errors import StoreError
from warmstart.host.deadline import after
from warmstart.host.worker import Worker
from warmstart.run.state import Caches, Run
from warmstart.seed import together
from warmstart.seed.together import Cold, ProposedProfile, Settled, Together
from warmstart.store.client import StoreClient
from warmstart.store.meeting import HeadSilent, Meeting

NODES = [f"n{number}" for number in range(1, 65)]
OFFERED = {"alpha": ProposedProfile("f" * 32, {"cpu": "x"}, [])}


class Local(StoreClient):
    """A client whose calls run in this process."""

    def __init__(self, path: Path) -> None:
        self.path, self.writer = str(path), f"test-{threading.get_ident()}"
        self.worker = cast(Worker, InlineWorker())


def be_patient(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let each node wait so long for the others."""
    for name in ("PROPOSAL_S", "VOTES_S", "MARGIN_S"):
        patch.setattr(together, name, seconds)
    patch.setattr(together, "SAYING_S", seconds / 5)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch, 0.05)


def member(store: Path, node: str, nodes: list[str], about: str = "caches") -> Together:
    made = Run("0a1b2c3d", 7, 7, 2001, 2001, "a", "", "main", "c", node, nodelist=",".join(nodes))
    return Together(Local(store), made, Caches(), Meeting("c.7.0", about, ",".join(nodes)), 0.0)


def agree(
    store: Path,
    nodes: list[str],
    cold: dict[str, dict[str, str]],
    absent: frozenset[str] = frozenset(),
    seconds: float = 10.0,
) -> dict[str, Settled | StoreError]:
    """Let the nodes agree, each in a thread; return what each learnt. `cold` is what a node cannot show.

    Each waits so many seconds for those who are absent.
    """
    learnt: dict[str, Settled | StoreError] = {}

    def run(node: str) -> None:
        part = member(store, node, nodes)
        try:
            part.proposal(OFFERED if node == nodes[0] else {}, after(30))
            learnt[node] = part.settle(cold.get(node, {}), after(30))
        except StoreError as error:
            learnt[node] = error

    threads = [threading.Thread(target=run, args=(node,)) for node in nodes if node not in absent]
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch, seconds)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return learnt


def colds(learnt: dict[str, Settled | StoreError]) -> list[dict[str, Cold]]:
    """Return what the nodes learnt to be cold, each result once."""
    found: list[dict[str, Cold]] = []
    for one in learnt.values():
        assert isinstance(one, Settled), one
        found += [one.cold] if one.cold not in found else []
    return found


@pytest.mark.parametrize("node", ["n1", "n3"])
def test_what_one_node_cannot_show_is_cold_on_all(tmp_path: Path, node: str) -> None:
    learnt = agree(tmp_path, NODES[:4], {node: {"alpha": "cache-failed"}})
    assert colds(learnt) == [{"alpha": Cold("cache-failed", [node])}]


@pytest.mark.real_time
def test_who_does_not_vote_makes_it_cold(tmp_path: Path) -> None:
    """The others do not wait for it for ever."""
    learnt = agree(tmp_path, NODES[:4], {}, frozenset({"n2", "n4"}), seconds=1.0)
    assert colds(learnt) == [{"alpha": Cold("no-vote", ["n2", "n4"])}]


def test_without_the_head_node_nothing_is_warm(tmp_path: Path) -> None:
    learnt = agree(tmp_path, NODES[:3], {}, frozenset({"n1"}), seconds=0.05)
    assert {type(one) for one in learnt.values()} == {HeadSilent}


def test_a_head_node_that_was_waited_for_in_vain_proposes_nothing(tmp_path: Path) -> None:
    """Who gave up has said so, and a third node need not wait."""
    late, others = member(tmp_path, "n1", NODES[:3]), [member(tmp_path, node, NODES[:3]) for node in NODES[1:3]]
    with pytest.raises(HeadSilent):
        others[0].proposal({}, after(30))
    assert (others[1].proposal({}, after(30)), late.proposal(OFFERED, after(30))) == ({}, {})


def test_who_voted_and_learns_no_choice_is_told(tmp_path: Path) -> None:
    head, other = (member(tmp_path, node, NODES[:2]) for node in NODES[:2])
    head.proposal(OFFERED, after(30))
    assert other.proposal({}, after(30)) == OFFERED
    with pytest.raises(HeadSilent, match="n1 has chosen nothing"):
        other.settle({}, after(30))


def test_a_head_node_that_is_late_chooses_cold(tmp_path: Path) -> None:
    head, other = (member(tmp_path, node, NODES[:2]) for node in NODES[:2])
    head.proposal(OFFERED, after(30))
    other.proposal({}, after(30))
    with pytest.raises(HeadSilent):
        other.settle({}, after(30))
    assert head.settle({}, after(30)).cold == {"alpha": Cold("head-silent", ["n1"])}


def test_a_prolog_that_runs_again_keeps_to_the_choice(tmp_path: Path) -> None:
    agree(tmp_path, NODES[:2], {"n2": {"alpha": "cache-failed"}})
    cold = [{"alpha": Cold("cache-failed", ["n2"])}]
    assert colds(agree(tmp_path, NODES[:2], {})) == cold

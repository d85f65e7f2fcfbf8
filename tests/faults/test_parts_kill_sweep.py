"""Kill nodes that hand in, and whoever merges, at every call: no entry is lost, and each is published once."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import filelock  # noqa: F401 - so that not every child imports it
import pytest

from tests.faults.test_maintenance_kill_sweep import alone, calls
from tests.lib.bundles import OWNER, draft, namespace
from tests.lib.node import Node, one
from tests.lib.vanish import WHENS, vanishes
from tests.lib.whole_jobs import WholeJob
from tests.lib.worker_calls import answer_here
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.store import parts
from warmstart.store.parts import RunParts

pytestmark = pytest.mark.usefixtures("capable_host")
NODES = "n[1-2]"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this process's priority as it is."""
    monkeypatch.setattr(process, "be_idle", lambda: None)


def hand_in(run: RunParts, node: str) -> None:
    """Let a node hand in an entry of its own, and nothing more."""
    fd = os.memfd_create("part")
    try:
        os.write(fd, b"bytes")
        parts.hand_in(run, namespace(Path(run.store)), fd, draft(node), NODES, OWNER)
    finally:
        os.close(fd)
    parts.finish(run, OWNER, node, NODES)


@WHENS
def test_a_node_that_dies_while_it_hands_in(tmp_path: Path, when: str) -> None:
    """The run is not complete before its epilog has run again; then its entry is there, and whole."""
    hand_in(RunParts(str(tmp_path), "1000.c.1.0"), "n1")  # makes `parts`
    for call in count(1):
        run = RunParts(str(tmp_path), f"1000.c.7.{call}")
        hand_in(run, "n1")
        died = vanishes(lambda run=run: hand_in(run, "n2"), call, when)  # type: ignore[misc]
        before = parts.listing(run)
        assert before is not None
        assert before.standing.missing or {part.where.name for part in before.parts} == {"ns"}
        assert before.standing.missing or parts.entries(run, namespace(tmp_path)) == ["n1", "n2"]
        hand_in(run, "n2")
        whole = parts.listing(run)
        assert whole is not None
        assert (whole.standing.missing, whole.damaged) == ([], {})
        assert parts.entries(run, namespace(tmp_path)) == ["n1", "n2"]
        if not died:
            assert call > 8
            return


@WHENS
@pytest.mark.parametrize("whose", ["a merge's", "an epilog's, of a round"])
def test_a_removal_of_parts_killed_at_any_step(
    tmp_path: Path, when: str, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes what is left of them for a part, and the next one removes it."""
    monkeypatch.setattr(parts, "_LEFT_S", -60.0)
    for call in count(1):
        name = parts.name_of(1000, "c", 7, call, number=int("round" in whose))
        run = RunParts(str(tmp_path), name)
        hand_in(run, "n1")
        hand_in(run, "n2")
        listing = parts.listing(run)
        assert listing is not None
        merged = [part.bundle for part in listing.parts]

        def removal(run: RunParts = run, call: int = call, merged: list[str] = merged) -> None:
            if parts.is_round(run.name):
                parts.end_rounds(run.store, parts.name_of(1000, "c", 7, call))
            else:
                parts.remove(run, merged)

        died = vanishes(removal, call, when)
        if (left := parts.listing(run)) is not None:
            for part in left.parts:
                copy, handed = os.memfd_create("copy"), parts.read(run, part.bundle)
                parts.fetch(run, part.bundle, handed.manifest.sha256, handed.manifest.size, copy)
                os.close(copy)
        removal()
        assert not os.path.exists(run.path)
        if not died:
            assert call > 6
            return


def test_a_merge_killed_on_the_way(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts are there until their bundle is; a second merge publishes nothing again."""
    site = Node(base)
    cleared = 0
    for turn, (call, when) in enumerate(calls(stride=5)):
        job = WholeJob(base, site=site)
        job.hand_in("n1", one(f"a{turn}"))
        job.hand_in("n2", {**one(f"b{turn}"), **one(f"a{turn}", b"other")})
        died = vanishes(alone(job.merge), call, when)
        was_left = os.path.isdir(job.paths.merging) and os.listdir(job.paths.merging)
        if was_left:  # by whoever comes first, whatever there is to do
            cleared += 1
            until = after(20)
            with monkeypatch.context() as patch:
                answer_here(patch, parts.due, lambda *_: [])
                while os.listdir(job.paths.merging):  # a worker of who vanished may hold a lock for a moment
                    assert not until.expired()
                    assert job.merge() == 0
        now = set(site.seen())
        assert now >= {f"{name}{number}" for name in "ab" for number in range(turn)}
        assert {f"a{turn}", f"b{turn}"} <= now or job.left()
        until = after(20)
        while job.left():
            assert not until.expired()
            job.merge()
            assert job.site.command("maintain", "--node", "n1").exit_code in (0, 1)
        assert os.listdir(job.paths.merging) == []
        assert set(site.seen()) == {f"{name}{number}" for name in "ab" for number in range(turn + 1)}
        if not died:
            assert min(turn - 4, cleared) > 0
            return

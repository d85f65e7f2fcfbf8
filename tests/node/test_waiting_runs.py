"""Runs that wait: what an epilog had no time for is harvested and removed, within bounds; losses are told."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.lib import mounts
from tests.lib.late_node import LateNode
from tests.lib.node import Node
from tests.lib.numba_entries import FOLDER, numba_entries
from tests.lib.runs import a_job
from warmstart.attempts import endings
from warmstart.ending import waiting
from warmstart.ending.release import WAITS
from warmstart.ending.waiting import ENDINGS
from warmstart.profiles import judge
from warmstart.profiles.contract import Profile
from warmstart.queue import at_work
from warmstart.steps import harvest

pytestmark = [pytest.mark.threat(15), pytest.mark.usefixtures("capable_host", "busy")]

MANY = 100
COPIED_S = 12  # what all of them take to copy; half of the budget of 3 s is for that


def test_what_there_is_no_time_for_is_finished_off_the_clock(base: Path) -> None:
    """The epilog ends in time and says so; the rest is published later, and nothing remains.

    In a cache that a bundle of the store's is mounted in; `LateNode`'s below begin empty.
    """
    node, entries = Node(base), numba_entries(*range(MANY))
    early, late = a_job(id=1), a_job(id=2)
    for job in (early, late):
        node.knows(job.id)
    assert node.run("prolog", early).status == 0
    node.work(early, numba_entries(MANY))
    assert node.run("epilog", early).status == 0
    node = Node(base, "harvest: {budget: 3s}\n")
    assert node.run("prolog", late).status == 0
    (run,) = node.workspace.glob("2.*")
    node.work(late, entries)
    size = sum(len(data) for files in entries.values() for data in files.values())
    with mounts.slow(base, Path(node.paths.stage), size // COPIED_S):
        assert node.run("epilog", late).status == 0
    assert f"numba: {WAITS}" in node.remarks(late.id)
    (moved,) = node.workspace.glob(".2.*")
    assert (moved.stat().st_mode & 0o7777, (moved / "tmp").exists(), run.exists()) == (0o700, False, False)
    for hook in ("prolog", "epilog"):  # a requeue of the job is not disturbed by it, nor the other way round
        assert node.run(hook, late).status == 0
    assert moved.exists()
    assert node.command("maintain", "--node", "n1").exit_code == 0
    assert not moved.exists()
    assert str(node.workspace) not in Path("/proc/self/mountinfo").read_text()
    assert os.listdir(f"{node.base}/run/warmstart/n1/queue/endings") == []
    assert sum(bundle["entries"] for bundle in node.json("cache", "list")) == 1 + MANY
    assert node.events("harvest.dropped") == []


@pytest.fixture
def node(base: Path, monkeypatch: pytest.MonkeyPatch) -> LateNode:
    """Yield a node, whose disk counts as empty whatever this machine's."""
    monkeypatch.setattr(waiting, "is_short_of_space", lambda _workspace: False)
    return LateNode(base)


def test_orphans_are_told_from_runs_that_wait(node: LateNode) -> None:
    for number in (1, 2):
        node.epilog(node.run_of(number))
    left = node.left()
    assert (left, node.waiting()) == ([".1.00000001", ".2.00000002"], ["1.00000001", "2.00000002"])
    with at_work(node.paths, ENDINGS.name) as mine, pytest.MonkeyPatch.context() as patch:
        assert mine
        patch.setattr("warmstart.maintenance.node.PATIENCE_S", 0.1)
        node.maintain()
        assert node.left() == left
    node.maintain()
    assert (node.left(), node.waiting()) == ([], [])
    assert set(node.seen()) == set(numba_entries(1, 2))
    assert node.dropped() == {}


@pytest.mark.threat(30)
@pytest.mark.real_time
def test_a_validation_that_is_late_keeps_what_was_judged(node: LateNode, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = numba_entries(*range(1, 8))
    (_, damaged), *_ = entries.items()
    for path in damaged:
        damaged[path] = b"not a pickle"
    slow, reason = f"{FOLDER}/m.f-5.py311", judge._reason

    def hang(profile: Profile, stage: int, entry: str, names: list[str]) -> str | None:
        if entry == slow:
            time.sleep(600)
        return reason(profile, stage, entry, names)

    node.epilog(node.run_of(1, entries=entries))
    with monkeypatch.context() as patch:
        patch.setattr(judge, "_reason", hang)
        patch.setattr(endings, "HARVEST_S", 12.0)
        node.maintain()
    assert f"{FOLDER}/m.f-2.py311" in node.seen()
    assert node.waiting() == ["1.00000001"]
    node.maintain()
    assert set(node.seen()) == entries.keys() - {f"{FOLDER}/m.f-1.py311"}
    assert [sum(cache["rejected"].values()) for cache in node.caches() if "rejected" in cache] == [
        1,
        1,
    ]  # each attempt judges it
    assert (node.left(), node.waiting()) == ([], [])


def test_a_scope_that_is_full_takes_nothing_and_nothing_waits(base: Path) -> None:
    site = LateNode(base, "maintenance: {per_user: 10KiB}")  # less than its first bundle
    site.publish({f"e{number}": {f"e{number}.nbi": os.urandom(4000)} for number in range(3)})
    site.publish(numba_entries(9), scope="site")
    assert site.epilog(site.run_of(1), budget=30.0) == ["cache-quota-exceeded"]
    assert site.waiting() == []
    assert set(site.seen()) == {"e0", "e1", "e2"}
    assert site.left() == []
    policy = Path(site.installation.policy)
    policy.write_text(policy.read_text().replace("10KiB", "32KiB"))
    site.epilog(site.run_of(2), budget=30.0)
    assert set(numba_entries(2)) <= set(site.seen())


def test_what_fails_shows_in_the_report(base: Path) -> None:
    node = LateNode(base, "maintenance: {per_user: 10KiB}")
    node.publish({f"e{number}": {f"e{number}.nbi": os.urandom(4000)} for number in range(3)})
    node.epilog(node.run_of(1))
    (report,) = node.json("maintain", "--node", "n1")
    assert (report["ended"], len(report["failed"])) == (1, 1)
    assert "user-1-a" in report["failed"][0]
    assert (node.left(), node.waiting()) == ([], [])
    node.epilog(node.run_of(2))
    node.maintain(status=1)


@pytest.mark.parametrize("store_answers", [True, False])
def test_what_a_prolog_had_no_budget_for_is_not_published_again(node: LateNode, store_answers: bool) -> None:
    first = node.publish(numba_entries(1, 2))
    record = node.run_of(1, entries=numba_entries(1, salt=b"mine"))  # nothing of the namespace was seeded
    if not store_answers:
        node.store.rename(node.base / "away")
    assert node.epilog(record, budget=30.0) == ([] if store_answers else ["store-failed"])
    if not store_answers:
        (node.base / "away").rename(node.store)
        assert node.waiting() == [record.name]
    node.maintain()
    assert node.waiting() == []
    assert [event["entries"] for event in node.harvested()] == [0]
    assert node.published() == []
    assert {path.stem for path in node.directory().glob("*.sqsh")} == {first}
    assert set(node.seen().values()) == {first}


def test_no_harvest_is_larger_than_what_a_job_fetches(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next job publishes the rest. An oversized bundle would keep its entries from all (first wins)."""
    entries = numba_entries(1, 2, 3, 4)
    size = sum(len(data) for data in entries[min(entries)].values())
    monkeypatch.setattr(harvest, "MOST_BYTES", 1536)
    node = LateNode(base)
    assert 2 * size <= 1536 < 3 * size
    for number in (1, 2):
        node.epilog(node.run_of(number, entries=entries), budget=30.0)
        assert len(node.seen()) == 2 * number
    node.maintain()
    told = node.harvested()
    assert [(event["entries"], bool(event.get("truncated"))) for event in told] == [(2, True), (2, False)]

"""Kill deferred harvests, exports and imports midway: the next run finishes them; nothing is lost or left over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.lib.late_node import LateNode
from tests.lib.left_runs import runs_left
from tests.lib.numba_entries import numba_entries
from tests.lib.vanish import VANISHED, vanishes
from warmstart import run_end
from warmstart.cli import maintain
from warmstart.errands import harvests, loop
from warmstart.harvest import deferred
from warmstart.harvest.deferred import HARVESTS
from warmstart.host.deadline import after
from warmstart.host.identity import WorkerSilent
from warmstart.session import open_session

pytestmark = pytest.mark.usefixtures("capable_host")

DAEMON = "user-1-daemon"
# Each act forks, unpacks and packs, so trying every call would take minutes: try every few, before and after in turn.
STRIDE = 3


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the limits on free disk space and priority, which depend on this machine."""
    monkeypatch.setattr(maintain, "be_idle", lambda: None)
    monkeypatch.setattr(deferred, "is_short_of_space", lambda _workspace: False)


def calls(stride: int = STRIDE) -> Iterator[tuple[int, str]]:
    """Yield the numbers of the calls to vanish at, and whether before or after them."""
    for turn in count():
        yield 1 + turn * stride, ("before", "after")[turn % 2]


def alone(act: Callable[[], object]) -> Callable[[], object]:
    """Make a process vanish, too, if its worker vanished."""

    def acting() -> None:
        try:
            act()
        except WorkerSilent:
            os._exit(VANISHED)

    return acting


def maintain_until_nothing_is_left(node: LateNode) -> None:
    """Run maintenance until it succeeds: the worker of the process that vanished may hold a lock for a while."""
    until = after(120)
    while node.command("maintain", "--node", "n1").exit_code or node.left() or node.waiting():
        assert not until.expired(), (node.left(), node.waiting())


def test_deferring_killed_on_the_way(base: Path) -> None:
    """The run is always known, by its record or as a deferred harvest."""
    node = LateNode(base)
    for number, (call, when) in enumerate(calls(), 1):
        record = node.run_of(number)
        died = vanishes(lambda record=record: node.epilog(record), call, when)  # type: ignore[misc]
        known = os.path.exists(f"{node.paths.state}/{number}/record.json")
        assert known or record.run_name in node.waiting()
        maintain_until_nothing_is_left(node)
        if not died:
            break
    assert number > 4
    assert set(node.seen()) == set(numba_entries(*range(1, number + 1)))


def test_finishing_killed_on_the_way(base: Path) -> None:
    """The harvest stays deferred until all of it is published and removed."""
    node = LateNode(base)

    def finish() -> None:
        with open_session(node.installation, "maintain", "n1") as session:
            # What maintenance does besides is not swept here; where nothing was finished, a worker vanished.
            os._exit(0 if loop.run(session, harvests.WORK[HARVESTS.name]) else VANISHED)

    for number, (call, when) in enumerate(calls(stride=7), 1):
        record = node.run_of(number)
        node.epilog(record)
        died = vanishes(alone(finish), call, when)
        there = os.path.exists(record.run_directory)
        assert not there or record.run_name in node.waiting()
        maintain_until_nothing_is_left(node)
        assert set(numba_entries(number)) <= set(node.seen())
        if not died:
            break
    assert number > 4
    assert node.dropped() == {}


def test_dropping_killed_on_the_way(base: Path) -> None:
    """A run that is dropped is known until it is removed."""
    node = LateNode(base)
    for number, (call, when) in enumerate(calls(stride=2), 1):
        record = node.run_of(number)
        node.epilog(record)

        def drop() -> None:
            with open_session(node.installation, "maintain", "n1") as session:
                for item in runs_left(node.paths, HARVESTS):
                    run_end.drop_deferred(node.paths, item, deferred.NO_ROOM, session.audit, after(30))

        died = vanishes(drop, call, when)
        assert record.run_name in node.waiting() or not os.path.exists(record.run_directory)
        drop()
        assert (node.left(), node.waiting()) == ([], [])
        if not died:
            break
    assert number > 4

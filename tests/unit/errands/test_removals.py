"""Runs of which a job left much are removed: in which order, and what becomes of those that cannot be."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lib.left_runs import damage
from tests.lib.node import NODE, Node
from tests.lib.runs import a_run
from warmstart import run_end
from warmstart.entry import background
from warmstart.errand import Errands
from warmstart.errands import loop, removals
from warmstart.harvest import deferred
from warmstart.harvest.deferred import REMOVALS
from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.paths import NodePaths
from warmstart.run.state import Run
from warmstart.run_end import WorkspaceBusy


@pytest.fixture
def site(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return an installation with a node that hooks have used. The priority of the tests stays as it is."""
    monkeypatch.setattr(process, "be_idle", lambda: None)
    os.makedirs(node.paths.state, mode=0o700)
    return node


def run(site: Node) -> int:
    return background.main(site.installation.prefix, [REMOVALS.name, NODE])


def left(site: Node, number: int, *files: str, uid: int = 0) -> Path:
    """Leave a run of which its epilog could not remove these files; return where they are."""
    record = a_run(job_id=number, run_id=f"{number:08x}", uid=uid, workspace=str(site.base / "workspace"))
    tree = site.base / "workspace" / record.going
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("x")
    deferred.defer(site.paths, REMOVALS, record, float(number))
    return tree


def test_what_hooks_left_is_removed(site: Node) -> None:
    for number in (1, 2):
        left(site, number, "tmp/a", "cache/b/c")
    Path(site.installation.off_switch).touch()
    assert run(site) == 0
    assert os.listdir(site.base / "workspace") == []
    assert Errands(site.paths, REMOVALS).all() == []


@pytest.mark.threat(43)
def test_users_take_turns(site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever's runs have taken least time is next, so a small run does not wait for many large ones."""
    for number, uid in ((1, 11), (2, 11), (3, 22)):
        left(site, number, "tmp/a", uid=uid)
    clock, slices = [0.0], {"1.00000001": 3, "2.00000002": 1, "3.00000003": 2}
    order: list[str] = []

    def finish(_paths: object, record: Run, _deadline: object) -> bool:
        clock[0] += removals.SLICE_S
        order.append(record.name)
        slices[record.name] -= 1
        return not slices[record.name]

    monkeypatch.setattr(run_end, "finish_removal", finish)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert run(site) == 0
    assert [name[0] for name in order] == ["1", "3", "2", "3", "1", "1"]


@pytest.mark.threat(43)
def test_a_run_that_cannot_be_removed_keeps_no_other(site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [left(site, number, "tmp/a", uid=os.getuid()) for number in (1, 2, 3)]
    damage(site.paths, REMOVALS, "4.00000004")
    real, times = run_end.finish_removal, []

    def finish(paths: NodePaths, record: Run, deadline: Deadline) -> bool:
        if record.job_id == 1:
            raise WorkspaceBusy(path=record.directory, problem="busy")
        if record.job_id == 2:
            times.append(1)
            return False
        return real(paths, record, deadline)

    monkeypatch.setattr(run_end, "finish_removal", finish)
    ticks = count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: 100.0 * next(ticks)))
    assert run(site) == 0
    assert [tree.exists() for tree in trees] == [True, True, False]
    assert 0 < len(times) < removals.USER_S / 100  # the others had turns, too
    assert [item.key for item in Errands(site.paths, REMOVALS).all()] == ["1.00000001", "2.00000002"]
    assert [event["code"] for event in site.failures()] == ["workspace-busy"]


def test_a_run_of_another_release_stays_for_it(site: Node) -> None:
    """It is neither removed nor forgotten."""
    tree = left(site, 1, "tmp/a")
    (item,) = Errands(site.paths, REMOVALS).all()
    path = Path(Errands(site.paths, REMOVALS).directory, item.name)
    path.write_text(path.read_text().replace('\\"format\\": 1', '\\"format\\": 2'))
    assert run(site) == 0
    assert tree.exists()
    assert Errands(site.paths, REMOVALS).all() == [item]

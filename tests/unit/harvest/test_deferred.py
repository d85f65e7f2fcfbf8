"""Runs that are to be harvested or removed: what is damaged is told, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.left_runs import damage, runs_left
from tests.lib.runs import a_run, changed
from warmstart.errand import Errands
from warmstart.harvest import deferred
from warmstart.harvest.deferred import HARVESTS, REMOVALS, DeferredHarvest
from warmstart.paths import NodePaths

NAME = "7.0a1b2c3d"


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    """Return the directories of a node, of which none is there yet."""
    return NodePaths(str(tmp_path), str(tmp_path), "/nowhere")


def test_the_oldest_comes_first_and_one_whose_harvest_took_long_after_all_that_nobody_has_begun(
    paths: NodePaths,
) -> None:
    records = [a_run(run_id=f"{number:08x}", left=["numba"]) for number in range(3)]
    records[1] = changed(records[1], judged={"numba": "x"})
    for record, since in zip(records, (5.5, 2.0, 2.0), strict=True):
        deferred.defer(paths, HARVESTS, record, since)
    found = Errands(paths, HARVESTS).due()
    assert [item.key for item in found] == ["7.00000002", "7.00000000", "7.00000001"]
    assert [item.owner for item in found] == [str(records[0].uid)] * 3
    assert deferred.read(paths, HARVESTS, found[1]) == DeferredHarvest("7.00000000", 5.5, records[0])
    assert runs_left(paths, REMOVALS) == []


@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"since": 1}', b'{"since": 1, "record": "{}"}']))
def test_a_damaged_one_is_told_as_such_and_hides_no_other(paths: NodePaths, content: bytes) -> None:
    deferred.defer(paths, HARVESTS, a_run(run_id="ffffffff"), 1.0)
    damage(paths, HARVESTS, NAME, content)
    first, second = runs_left(paths, HARVESTS)
    assert first == DeferredHarvest(NAME, 0.0, None)
    assert second.run


def test_a_record_of_another_run_and_one_that_is_too_long_are_damage(paths: NodePaths) -> None:
    deferred.defer(paths, HARVESTS, a_run(), 1.0)
    errands = Errands(paths, HARVESTS)
    (item,) = errands.all()
    os.rename(f"{errands.directory}/{item.name}", f"{errands.directory}/{item._replace(key='8.0a1b2c3d').name}")
    os.truncate(damage(paths, HARVESTS, "9.0a1b2c3d"), 1 << 30)
    damaged = {name: DeferredHarvest(name, 0.0, None) for name in ("8.0a1b2c3d", "9.0a1b2c3d")}
    assert {run.name: run._replace(since=0.0) for run in runs_left(paths, HARVESTS)} == damaged
    errands.drop("8.0a1b2c3d")
    assert deferred.read(paths, HARVESTS, item) is None  # what is gone is not damaged


@pytest.mark.parametrize(
    ("blocks", "inodes", "short"),
    [
        ((50, 100), (50, 100), False),
        ((9, 100), (50, 100), True),
        ((50, 100), (9, 100), True),
        ((50, 100), (0, 0), False),  # a file system that counts no inodes
    ],
)
def test_a_disk_that_is_nearly_full(
    monkeypatch: pytest.MonkeyPatch, blocks: tuple[int, int], inodes: tuple[int, int], short: bool
) -> None:
    fields = (4096, 4096, blocks[1], blocks[0], blocks[0], inodes[1], inodes[0], inodes[0], 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(fields))
    assert deferred.is_short_of_space("/w") is short

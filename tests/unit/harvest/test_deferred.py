"""Runs that are to be harvested or removed: what is damaged is told, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lib.left_runs import damage, runs_left
from tests.lib.runs import a_record
from warmstart.errand import Errands
from warmstart.harvest import deferred
from warmstart.harvest.deferred import HARVESTS, REMOVALS, DeferredHarvest
from warmstart.paths import NodePaths
from warmstart.record import CacheSet, StateFull

NAME = "7.0a1b2c3d"


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    """Return the directories of a node, of which none is there yet."""
    return NodePaths(str(tmp_path), "/nowhere")


def test_the_oldest_comes_first(paths: NodePaths) -> None:
    """Each with its record. One whose harvest took long comes after all that nobody has begun."""
    records = [a_record(run_id=f"{number:08x}", deferred=["numba"]) for number in range(3)]
    records[1] = records[1]._replace(judged={"numba": "x"})
    for record, since in zip(records, (5.5, 2.0, 2.0), strict=True):
        deferred.defer(paths, HARVESTS, record, since)
    found = Errands(paths, HARVESTS).due()
    assert [item.key for item in found] == ["7.00000002", "7.00000000", "7.00000001"]
    assert [item.owner for item in found] == [str(records[0].uid)] * 3
    assert deferred.read(paths, HARVESTS, found[1]) == DeferredHarvest("7.00000000", 5.5, records[0])
    assert runs_left(paths, REMOVALS) == []


def test_a_run_is_there_once(paths: NodePaths) -> None:
    """A repeated epilog defers it again."""
    for since in (1.0, 2.0):
        deferred.defer(paths, HARVESTS, a_record(), since)
    assert runs_left(paths, HARVESTS) == [DeferredHarvest(NAME, 2.0, a_record())]


def test_it_has_all_sets_of_the_run(paths: NodePaths) -> None:
    """With what of each is left."""
    other = CacheSet("0a1b2c3d", "c0ffee00", "sha256:ab", deferred=["numba"], judged={"numba": "1x"})
    deferred.defer(paths, HARVESTS, a_record(sets=[other]), 1.0)
    assert runs_left(paths, HARVESTS) == [DeferredHarvest(NAME, 1.0, a_record(sets=[other]))]


def test_one_of_another_release_stays_for_it(paths: NodePaths) -> None:
    """It is neither finished nor dropped."""
    deferred.defer(paths, HARVESTS, a_record(), 1.0)
    (item,) = Errands(paths, HARVESTS).all()
    path = Path(Errands(paths, HARVESTS).directory, item.name)
    path.write_text(path.read_text().replace('\\"format\\": 1', '\\"format\\": 2'))
    assert "2" in path.read_text()
    assert deferred.read(paths, HARVESTS, item) is None
    assert Errands(paths, HARVESTS).all() == [item]


def test_a_disk_without_room_is_no_fault_of_the_nodes(paths: NodePaths) -> None:
    """The epilog goes on without it."""
    Path(paths.errands).touch()
    with pytest.raises(StateFull):
        deferred.defer(paths, HARVESTS, a_record(), 1.0)


@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"since": 1}', b'{"since": 1, "record": "{}"}']))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_one_is_told_as_such(paths: NodePaths, content: bytes) -> None:
    """Without a record; the others are as they were."""
    deferred.defer(paths, HARVESTS, a_record(run_id="ffffffff"), 1.0)
    damage(paths, HARVESTS, NAME, content)
    first, second = runs_left(paths, HARVESTS)
    assert first == DeferredHarvest(NAME, 0.0, None)
    assert second.record


def test_a_record_of_another_run_is_damage(paths: NodePaths) -> None:
    """Neither is one that is too long to be one."""
    deferred.defer(paths, HARVESTS, a_record(), 1.0)
    errands = Errands(paths, HARVESTS)
    (item,) = errands.all()
    os.rename(f"{errands.directory}/{item.name}", f"{errands.directory}/{item._replace(key='8.0a1b2c3d').name}")
    os.truncate(damage(paths, HARVESTS, "9.0a1b2c3d"), 1 << 30)
    damaged = {name: DeferredHarvest(name, 0.0, None) for name in ("8.0a1b2c3d", "9.0a1b2c3d")}
    assert {run.name: run._replace(since=0.0) for run in runs_left(paths, HARVESTS)} == damaged


def test_what_is_gone_is_not_damaged(paths: NodePaths) -> None:
    """Another process has just finished it."""
    deferred.defer(paths, HARVESTS, a_record(), 1.0)
    (item,) = Errands(paths, HARVESTS).all()
    Errands(paths, HARVESTS).drop(NAME)
    assert deferred.read(paths, HARVESTS, item) is None


@pytest.mark.parametrize(
    ("blocks", "inodes", "short"),
    [
        ((50, 100), (50, 100), False),
        ((9, 100), (50, 100), True),
        ((50, 100), (9, 100), True),
        ((50, 100), (0, 0), False),
    ],
)
def test_a_disk_that_is_nearly_full(
    monkeypatch: pytest.MonkeyPatch, blocks: tuple[int, int], inodes: tuple[int, int], short: bool
) -> None:
    """Of blocks or of inodes; a file system that counts none says 0 of 0."""
    fields = (4096, 4096, blocks[1], blocks[0], blocks[0], inodes[1], inodes[0], inodes[0], 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(fields))
    assert deferred.is_short_of_space("/w") is short

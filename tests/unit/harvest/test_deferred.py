"""Runs that maintenance is to finish: each is one file, and what is damaged is told and never in the way."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.runs import a_record
from warmstart.harvest import deferred
from warmstart.harvest.deferred import DeferredHarvest
from warmstart.record import StateFull

NAME = "7.0a1b2c3d"


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """Return where deferred harvests are, which is not there yet."""
    return str(tmp_path / "deferred")


def test_the_oldest_comes_first(directory: str) -> None:
    """Each with its record; forgotten, it is gone, and twice is fine."""
    assert deferred.deferred_harvests(directory) == []
    records = [a_record(run_id=f"{number:08x}", deferred=["numba"]) for number in range(3)]
    for record, since in zip(records, (5.5, 2.0, 2.0), strict=True):
        deferred.defer(directory, record, since)
    found = deferred.deferred_harvests(directory)
    assert found == [
        DeferredHarvest("7.00000001", 2.0, records[1]),
        DeferredHarvest("7.00000002", 2.0, records[2]),
        DeferredHarvest("7.00000000", 5.5, records[0]),
    ]
    assert deferred.holds(directory, "7.00000002")
    for _ in range(2):
        deferred.forget(directory, "7.00000002")
        assert not deferred.holds(directory, "7.00000002")
    assert [item.name for item in deferred.deferred_harvests(directory)] == ["7.00000001", "7.00000000"]


def test_one_of_another_release_stays_for_it(directory: str) -> None:
    """It is neither finished nor dropped."""
    deferred.defer(directory, a_record(), 1.0)
    path = Path(directory, f"{NAME}.json")
    path.write_text(path.read_text().replace('\\"format\\": 1', '\\"format\\": 2'))
    assert "format" in path.read_text()
    assert deferred.deferred_harvests(directory) == []
    assert deferred.holds(directory, NAME)


def test_nobody_else_reads_it(directory: str) -> None:
    """A record has what the job's environment holds."""
    deferred.defer(directory, a_record(), 1.0)
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (directory, f"{directory}/{NAME}.json")]
    assert modes == [0o700, 0o600]


def test_what_is_not_there_is_forgotten_already(directory: str) -> None:
    """Neither is its directory."""
    deferred.forget(directory, NAME)
    assert not deferred.holds(directory, NAME)
    assert not os.path.exists(directory)


def test_a_disk_without_room_is_no_fault_of_the_nodes(tmp_path: Path) -> None:
    """The epilog goes on without it."""
    (tmp_path / "file").touch()
    with pytest.raises(StateFull):
        deferred.defer(f"{tmp_path}/file", a_record(), 1.0)


@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"since": 1}', b'{"since": 1, "record": "{}"}']))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_one_is_told_as_such(directory: str, content: bytes) -> None:
    """The oldest of all, without a record: it is the first to be dropped."""
    if not deferred.holds(directory, "7.ffffffff"):
        deferred.defer(directory, a_record(run_id="ffffffff"), 1.0)
    Path(directory, f"{NAME}.json").write_bytes(content)
    first, second = deferred.deferred_harvests(directory)
    assert first == DeferredHarvest(NAME, 0.0, None)
    assert second.record


def test_a_record_of_another_run_is_damage(directory: str) -> None:
    """Neither is one that is too long to be one."""
    deferred.defer(directory, a_record(), 1.0)
    os.rename(f"{directory}/{NAME}.json", f"{directory}/8.0a1b2c3d.json")
    with Path(directory, "9.0a1b2c3d.json").open("wb") as long:
        long.truncate(1 << 30)
    Path(directory, ".7.0a1b2c3d.json.1.tmp").write_text(json.dumps({}))  # a writer that died
    assert deferred.deferred_harvests(directory) == [
        DeferredHarvest("8.0a1b2c3d", 0.0, None),
        DeferredHarvest("9.0a1b2c3d", 0.0, None),
    ]


def test_one_finishes_at_a_time(directory: str) -> None:
    """Nobody waits, and where nothing was deferred there is nothing to lock."""
    with deferred.exclusive(directory) as is_ours:
        assert not is_ours
    os.mkdir(directory)
    with deferred.exclusive(directory) as first, deferred.exclusive(directory) as second:
        assert (first, second) == (True, False)
    with deferred.exclusive(directory) as is_ours:
        assert is_ours


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

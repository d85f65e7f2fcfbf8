"""Reports for jobs' users: replaced by name, bounded, removed by age."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from warmstart.store import reports
from warmstart.store.layout import StoreFailed

UID = 64201


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path)


def left(store: str, *jobs: int, trim: bool = True) -> None:
    for job in jobs:
        reports.leave(store, UID, reports.name_of(job, "0a1b2c3d", "n1"), f"{job}\n", trim)


def test_each_run_has_one(store: str) -> None:
    left(store, 7, 12, 7)
    assert [*reports.read(store, UID)] == [b"7\n", b"12\n"]
    assert [*reports.read(store, UID, 7)] == [b"7\n"]
    assert [*reports.read(store, UID, 1)] == []


def test_what_a_killed_writer_left_goes_before_reports_do(store: str) -> None:
    left(store, 7)
    folder = Path(store, reports.FOLDER, str(UID))
    for name, age in ((".0000000008.a.n1.1.tmp", 86_000), (".0000000009.a.n1.1.tmp", 87_000)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age,) * 2)
    assert [*reports.read(store, UID)] == [b"7\n"]
    assert reports.remove_before(store, 0) == 1
    assert sorted(os.listdir(folder)) == [".0000000008.a.n1.1.tmp", reports.name_of(7, "0a1b2c3d", "n1")]


def test_a_folder_is_listed_by_its_user_alone(store: str) -> None:
    left(store, 7)
    top, folder = Path(store, reports.FOLDER), Path(store, reports.FOLDER, str(UID))
    assert (top.stat().st_mode & 0o777, folder.stat().st_mode & 0o007) == (0o711, 0)
    entries = os.getxattr(folder, "system.posix_acl_access")[4:]
    acl = [tuple(entries[at : at + 8][start] for start in (0, 2)) for at in range(0, len(entries), 8)]
    assert acl == [(0x01, 7), (0x02, 5), (0x04, 0), (0x10, 5), (0x20, 0)]
    assert int.from_bytes(entries[12:16], "little") == UID


def test_of_a_user_the_last_stay(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MOST", 3)
    left(store, 9, 10, 11, 100, trim=False)
    being_written = Path(store, reports.FOLDER, str(UID), ".0000000012.a.n1.1.tmp")
    being_written.touch()
    left(store, 101)
    assert [*reports.read(store, UID)] == [b"11\n", b"100\n", b"101\n"]
    assert being_written.exists()


def test_a_long_text_loses_its_last_lines(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "LONGEST", 10)
    reports.leave(store, UID, "0000000007.a.n1", "1234\n5678\n9012\n", True)
    assert [*reports.read(store, UID)] == [b"1234\n5678\n"]


def test_old_ones_go_and_empty_folders(store: str) -> None:
    assert reports.remove_before(store, 0) == 0
    left(store, 7, 8)
    folder = Path(store, reports.FOLDER, str(UID))
    (folder / ".0000000009.a.n1").touch()
    for name in os.listdir(folder):
        os.utime(folder / name, (1000, 1000))
    left(store, 8)
    assert reports.remove_before(store, 2000) == 2
    assert [*reports.read(store, UID)] == [b"8\n"]
    assert reports.remove_before(store, float("inf")) == 1
    assert os.listdir(Path(store, reports.FOLDER)) == []


def test_without_lists_nothing_is_left(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "setxattr", refuse)
    with pytest.raises(StoreFailed, match=f"write a report for a job's user: {os.strerror(errno.EOPNOTSUPP)}"):
        left(store, 7)
    assert os.listdir(Path(store, reports.FOLDER, str(UID))) == []
    assert Path(store, reports.FOLDER, str(UID)).stat().st_mode & 0o077 == 0

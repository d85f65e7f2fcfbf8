"""Locks of the store: one holder, a file that stays, and work that goes on where there are none."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import filelock
import pytest

from warmstart.store import locks


def test_one_has_it_until_it_is_released(tmp_path: Path) -> None:
    """The file stays, in a directory that nobody else can enter: whoever can open a lock can hold it for ever."""
    directory = tmp_path / "locks"
    held = locks.try_lock(str(directory), "publish")
    assert held
    assert not held.lockless
    assert locks.try_lock(str(directory), "publish") is None
    other = locks.try_lock(str(directory), "other")
    assert other
    held.release()
    again = locks.try_lock(str(directory), "publish")
    assert again
    again.release()
    other.release()
    assert sorted(os.listdir(directory)) == ["other", "publish"]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "publish").stat().st_mode) == 0o600


@pytest.mark.parametrize("number", sorted(locks._NO_LOCKS))
def test_a_file_system_without_locks_lets_everybody_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """There is nobody to wait for, and the reason is kept for the audit."""

    def refuse(_lock: filelock.FileLock) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    held = locks.try_lock(str(tmp_path), "x")
    assert held
    assert held.lockless == os.strerror(number)
    held.release()


def test_a_system_without_the_call_is_one_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What filelock says of a platform that has none."""

    def refuse(_lock: filelock.FileLock) -> None:
        raise NotImplementedError

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    held = locks.try_lock(str(tmp_path), "x")
    assert held
    assert held.lockless == os.strerror(errno.ENOSYS)


def test_a_store_that_fails_is_no_reason_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full or dead file system is told."""

    def refuse(_lock: filelock.FileLock) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with pytest.raises(OSError, match="Input/output"):
        locks.try_lock(str(tmp_path), "x")


def test_publishers_take_turns(tmp_path: Path) -> None:
    """The lock of a namespace is held for the block, and no longer."""
    with locks.publish_lock(str(tmp_path)):
        assert locks.try_lock(str(tmp_path / "locks"), "publish") is None
    held = locks.try_lock(str(tmp_path / "locks"), "publish")
    assert held
    held.release()


def test_a_lock_only_saves_work(tmp_path: Path) -> None:
    """Whoever does not get it, or not even its directory, goes on; what another holds stays held."""
    held = locks.try_lock(str(tmp_path), "x")
    assert held
    went_on = []
    with locks.lock_or_proceed(str(tmp_path), "x", seconds=0.0):
        went_on.append("without it")
    assert locks.try_lock(str(tmp_path), "x") is None
    held.release()
    with locks.lock_or_proceed(str(tmp_path / "not" / "there"), "x"):
        went_on.append("without a directory")
    assert went_on == ["without it", "without a directory"]

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
    """Nobody else can enter the directory: whoever can open a lock can hold it for ever."""
    directory = tmp_path / "locks"
    held, other = (locks.try_lock(str(directory), name) for name in ("publish", "other"))
    assert held
    assert other
    assert not held.lockless
    assert locks.try_lock(str(directory), "publish") is None
    held.release()
    with locks.lock_or_proceed(str(directory), "publish"):
        assert locks.try_lock(str(directory), "publish") is None
    again = locks.try_lock(str(directory), "publish")
    assert again
    again.release()
    other.release()
    assert sorted(os.listdir(directory)) == ["other", "publish"]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "publish").stat().st_mode) == 0o600


NO_LOCKS = [(OSError(number, os.strerror(number)), os.strerror(number)) for number in sorted(locks._NO_LOCKS)]


@pytest.mark.parametrize(("error", "why"), [*NO_LOCKS, (NotImplementedError(), os.strerror(errno.ENOSYS))])
def test_a_file_system_without_locks_lets_everybody_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    def refuse(_lock: filelock.FileLock) -> None:
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    held = locks.try_lock(str(tmp_path), "x")
    assert held
    assert held.lockless == why  # for the audit log
    held.release()


def test_a_store_that_fails_is_no_reason_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_lock: filelock.FileLock) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with pytest.raises(OSError, match="Input/output"):
        locks.try_lock(str(tmp_path), "x")


def test_who_does_not_get_a_lock_or_its_directory_goes_on(tmp_path: Path) -> None:
    held = locks.try_lock(str(tmp_path), "x")
    assert held
    went_on = []
    with locks.lock_or_proceed(str(tmp_path), "x", seconds=0.0):
        went_on.append("without it")
    assert locks.try_lock(str(tmp_path), "x") is None  # what another holds stays held
    held.release()
    with locks.lock_or_proceed(str(tmp_path / "not" / "there"), "x"):
        went_on.append("without a directory")
    assert went_on == ["without it", "without a directory"]

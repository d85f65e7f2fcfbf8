"""The lock of an import: what it does where there are no locks, and what dead producers leave."""

from __future__ import annotations

import errno
from pathlib import Path

import filelock
import pytest

from warmstart.images import published
from warmstart.images.published import Producer

WHO = Producer("n1", 1, 7, "x")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESTALE])
def test_a_file_system_without_locks_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Everybody becomes the producer, and is told why."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    for _ in range(2):
        assert published.begin(str(tmp_path), "key", WHO, "t")
    published.end(str(tmp_path), "key")


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_a_failing_store_is_no_reason_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """What is no lack of locks is the store's failure, and nobody imports on it."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "broken")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with pytest.raises(OSError, match="broken"):
        published.begin(str(tmp_path), "key", WHO, "t")


def test_a_live_producers_word_stays_and_a_dead_ones_goes(tmp_path: Path) -> None:
    """Only whoever has the lock is believed to live."""
    assert published.begin(str(tmp_path), "live", WHO, "t") == ""
    (tmp_path / "images" / "locks" / "dead.producer").write_text("{}")
    published.forget_dead(str(tmp_path))
    assert [path.name for path in (tmp_path / "images" / "locks").glob("*.producer")] == ["live.producer"]
    assert published.producer_of(str(tmp_path), "live") == WHO
    published.end(str(tmp_path), "live")
    assert published.producer_of(str(tmp_path), "live") is None


@pytest.mark.parametrize(
    "said", ["", "[]", "{}", '{"host": "n1"}', '{"host": "n1", "pid": "x", "job": 1, "since": ""}']
)
def test_a_damaged_word_is_none(tmp_path: Path, said: str) -> None:
    """What no producer has written is not told to waiters."""
    published.begin(str(tmp_path), "key", WHO, "t")
    (tmp_path / "images" / "locks" / "key.producer").write_text(said)
    assert published.producer_of(str(tmp_path), "key") is None
    published.end(str(tmp_path), "key")


def test_what_is_said_is_short(tmp_path: Path) -> None:
    """It goes into errors that users see; what a producer does now is there as soon as it says so."""
    published.begin(str(tmp_path), "key", WHO, "t")
    file = tmp_path / "images" / "locks" / "key.producer"
    assert file.read_text() == '{"host": "n1", "pid": 1, "job": 7, "since": "x"}'
    published.announce(str(tmp_path), "key", WHO._replace(doing="y" * 100), "t")
    assert published.producer_of(str(tmp_path), "key") == WHO._replace(doing="y" * 80)
    published.end(str(tmp_path), "key")

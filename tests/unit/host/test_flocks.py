"""The one helper that takes file locks."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from warmstart.host import files
from warmstart.host.deadline import after


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Give two descriptors of one file, each with a lock of its own."""
    with ExitStack() as opened:
        yield opened.enter_context(descriptor(tmp_path / "lock")), opened.enter_context(descriptor(tmp_path / "lock"))


@contextmanager
def descriptor(path: Path) -> Iterator[int]:
    """Open a file for the length of a `with`."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def test_one_holder_at_a_time(two: tuple[int, int]) -> None:
    """Whoever tries once learns that somebody holds it; a lock that is held can be taken again by its descriptor."""
    first, second = two
    assert files.try_take(first)
    assert files.try_take(first)
    assert not files.try_take(second)
    assert not files.try_take(second, shared=True)
    files.release(first)
    assert files.try_take(second)


def test_a_directory_can_be_locked(tmp_path: Path) -> None:
    """So no lock file has to lie in it."""
    fds = [os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2)]
    assert [files.try_take(fd) for fd in fds] == [True, False]
    os.close(fds.pop(0))
    assert files.try_take(fds[0])
    os.close(fds[0])


def test_readers_share_and_exclude_writers(two: tuple[int, int], tmp_path: Path) -> None:
    """LOCK_SH beside LOCK_SH, and never beside LOCK_EX."""
    first, second = two
    assert files.try_take(first, shared=True)
    assert files.take(second, after(0), shared=True)
    with descriptor(tmp_path / "lock") as third:
        assert not files.try_take(third)
        assert not files.take(third, after(0.01), 0.005)


def test_a_wait_ends_with_the_lock_or_at_the_deadline(two: tuple[int, int]) -> None:
    """Not before the deadline, and soon after the holder lets go."""
    first, second = two
    assert files.take(first, after(0))
    started = time.monotonic()
    assert not files.take(second, after(0.05), 0.01)
    assert 0.05 <= time.monotonic() - started < 2
    holder = threading.Timer(0.05, files.release, [first])
    holder.start()
    assert files.take(second, after(10), 0.01)
    holder.join()


def test_a_file_system_without_locks_is_an_error(tmp_path: Path) -> None:
    """Never "somebody holds it": what cannot be locked is the caller's to judge, and no wait ends it."""
    fd = os.open(tmp_path, os.O_PATH)  # as ENOLCK or ENOTSUP would be: no lock on this descriptor
    try:
        with pytest.raises(OSError):
            files.take(fd, after(10))
    finally:
        os.close(fd)

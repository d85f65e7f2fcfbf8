"""A tool's own lock file: waited for, for a while, opened like everything of a job's."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from warmstart.harvest.collect import HELD, tool_lock
from warmstart.host import untrusted
from warmstart.host.deadline import after
from warmstart.host.files import mount_id, opened_dir
from warmstart.host.untrusted import Tree, TurnedAway


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """Give a tree of ours."""
    with opened_dir(str(tmp_path)) as fd:
        opened = Tree(fd, mount_id(fd), os.getuid())
        yield opened
        opened.close()


@contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    """Hold a lock as a tool does."""
    with path.open("w") as file:
        fcntl.flock(file, how)
        yield


def test_no_lock_file_is_no_lock(tree: Tree, tmp_path: Path) -> None:
    """And none is made."""
    with tool_lock(tree, "f.lock", after(1)), tool_lock(tree, "", after(1)):
        assert list(tmp_path.iterdir()) == []


def test_a_reader_does_not_mind_readers(tree: Tree, tmp_path: Path) -> None:
    """Shared locks go together; ours keeps a writer out and is gone afterwards."""
    with held(tmp_path / "f.lock", fcntl.LOCK_SH), tool_lock(tree, "f.lock", after(1)):
        pass
    with (tmp_path / "f.lock").open() as file:
        with tool_lock(tree, "f.lock", after(1)), pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_writer_is_waited_for_until_the_deadline(tree: Tree, tmp_path: Path) -> None:
    """Then the file is left out."""
    writing = held(tmp_path / "f.lock", fcntl.LOCK_EX)
    with writing, pytest.raises(TurnedAway) as caught, tool_lock(tree, "f.lock", after(0.1)):
        pass
    assert caught.value.reason == HELD
    assert (tmp_path / "f.lock").exists()


@pytest.mark.parametrize("kind", ["link", "fifo", "hard link", "directory"])
def test_what_is_no_plain_file_is_not_locked(tree: Tree, tmp_path: Path, kind: str) -> None:
    """Root follows no link, waits for no FIFO's writer, and locks nobody else's file."""
    lock, other = tmp_path / "f.lock", tmp_path / "other"
    other.touch()
    if kind == "link":
        lock.symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(lock)
    elif kind == "hard link":
        lock.hardlink_to(other)
    else:
        lock.mkdir()
    with pytest.raises(TurnedAway) as caught, tool_lock(tree, "f.lock", after(1)):
        pass
    assert caught.value.reason in (untrusted.LINK, untrusted.SPECIAL, untrusted.HARD_LINK)

"""The caps of an import that no file system holds: what counts, and that looking is safe."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmstart.images import scratch
from warmstart.images.scratch import Caps, Exceeded, Watch

ROOMY = Caps(1 << 30, 1000)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """Return an open directory."""
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_counts_bytes_and_files(directory: int, tmp_path: Path) -> None:
    """In directories, too; a hole takes no space."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(os.urandom(1 << 20))
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 1 << 40)
    Watch(directory, ROOMY).look()
    Watch(directory, ROOMY._replace(files=4)).look()
    with pytest.raises(Exceeded):
        Watch(directory, ROOMY._replace(files=3)).look()
    with pytest.raises(Exceeded):
        Watch(directory, ROOMY._replace(size=1 << 20)).look()  # the directories take some as well
    Watch(directory, ROOMY._replace(size=2 << 20)).look()


def test_leads_nowhere_else_and_ends(directory: int, tmp_path: Path) -> None:
    """A link counts as itself, and directories in each other end somewhere."""
    (tmp_path / "link").symlink_to("/usr")
    Watch(directory, ROOMY._replace(files=1)).look()
    deep = tmp_path
    for _ in range(scratch.DEEPEST + 1):
        deep /= "d"
        deep.mkdir()
    with pytest.raises(Exceeded):
        Watch(directory, ROOMY).look()


def test_looks_now_and_then(directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not again before its time: what is looked at is large."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Watch(directory, ROOMY._replace(files=1))
    watch()
    (tmp_path / "one").touch()
    (tmp_path / "two").touch()
    now[0] += scratch.EVERY_S / 2
    watch()
    now[0] += scratch.EVERY_S
    with pytest.raises(Exceeded):
        watch()

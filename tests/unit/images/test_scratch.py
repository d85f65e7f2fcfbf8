"""The directory of one import: private, gone afterwards, found again after a kill."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from warmstart.host.worker import Identity
from warmstart.images import scratch

ME = Identity("me", os.geteuid(), os.getegid())


def test_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    """The outer directory can't be listed by others, the inner one is the account's alone; both are removed."""
    with scratch.opened(str(tmp_path), "n1", "r1", ME) as work:
        path = Path(work.path)
        assert path.stat().st_mode & 0o7777 == 0o700
        assert path.parent.stat().st_mode & 0o7777 == 0o711
        assert path.parent.name.startswith("import.r1.")
        (path / "deep").mkdir()
        (path / "deep" / "file").touch()
        (path / "link").symlink_to("/etc")
    assert os.listdir(tmp_path / "n1") == []


def test_is_gone_after_a_failure(tmp_path: Path) -> None:
    """An import that fails leaves nothing behind."""
    with pytest.raises(RuntimeError), scratch.opened(str(tmp_path), "n1", "r1", ME):
        raise RuntimeError
    assert os.listdir(tmp_path / "n1") == []


def test_removes_what_dead_hooks_left_and_nothing_else(tmp_path: Path) -> None:
    """A directory that nobody has locked goes; a live import's and a job's stay."""
    (tmp_path / "n1" / "import.dead.00" / "x").mkdir(parents=True)
    (tmp_path / "n1" / "7.r0").mkdir()
    live = tmp_path / "n1" / "import.live.00"
    live.mkdir()
    fd = os.open(live, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with scratch.opened(str(tmp_path), "n1", "r1", ME):
            assert {"7.r0", "import.live.00"} < set(os.listdir(tmp_path / "n1"))
            assert not (tmp_path / "n1" / "import.dead.00").exists()
    finally:
        os.close(fd)
    assert set(os.listdir(tmp_path / "n1")) == {"7.r0", "import.live.00"}


def test_a_full_or_broken_disk_is_told_apart(tmp_path: Path) -> None:
    """Only what no user can cause is the node's fault."""
    with pytest.raises(scratch.ScratchUnusable), scratch.disk_errors("/w"):
        raise OSError(28, "No space left on device")
    with pytest.raises(scratch.ScratchBroken), scratch.disk_errors("/w"):
        raise OSError(30, "Read-only file system")
    (tmp_path / "file").touch()
    with pytest.raises(scratch.ScratchUnusable), scratch.opened(str(tmp_path / "file"), "n1", "r1", ME):
        pytest.fail("a file is no directory")

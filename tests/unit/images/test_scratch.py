"""The directory of one import: private, bounded, gone afterwards, found again after a kill."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib.image_site import CAPS
from warmstart.host import loops
from warmstart.host.deadline import after
from warmstart.host.files import FileSystemBroken
from warmstart.host.identity import Identity
from warmstart.host.remove import remove_tree
from warmstart.images import scratch
from warmstart.images.scratch import Caps, Exceeded, Watch

ME = Identity("me", os.geteuid(), os.getegid())


def test_removes_what_dead_hooks_left_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "import.dead.00" / "x").mkdir(parents=True)
    (tmp_path / "7.r0").mkdir()
    live = tmp_path / "import.live.00"
    live.mkdir()
    fd = os.open(live, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with scratch.opened(str(tmp_path), "r1", ME, CAPS):
            assert {"7.r0", "import.live.00"} < set(os.listdir(tmp_path))
            assert not (tmp_path / "import.dead.00").exists()
    finally:
        os.close(fd)
    assert set(os.listdir(tmp_path)) == {"7.r0", "import.live.00"}


def test_a_full_or_broken_disk_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(scratch.ScratchUnusable), scratch.disk_errors("/w"):
        raise OSError(28, "No space left on device")
    with pytest.raises(FileSystemBroken), scratch.disk_errors("/w"):
        raise OSError(30, "Read-only file system")
    (tmp_path / "file").touch()
    with pytest.raises(scratch.ScratchUnusable), scratch.opened(str(tmp_path / "file"), "r1", ME, CAPS):
        pytest.fail("a file is no directory")


def test_an_error_that_names_a_descriptor_is_told() -> None:
    error = scratch.WorkspaceNotRoots.of("/w", NotADirectoryError(20, "Not a directory", 7))
    assert error.fields["path"] == "/w"


@pytest.mark.parametrize("lacking", ["mke2fs", "loop devices"])
def test_without_a_file_system_it_is_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    def attach(*_: object, **__: object) -> NoReturn:
        raise FileNotFoundError(2, "No such file or directory", "/dev/loop-control")

    if lacking == "mke2fs":
        monkeypatch.setattr(scratch, "MKE2FS", "/bin/false")
    else:
        monkeypatch.setattr(scratch, "MKE2FS", "/bin/true")
        monkeypatch.setattr(loops, "attach", attach)
    with scratch.opened(str(tmp_path), "r1", ME, CAPS) as work:
        assert not work.is_loop_filesystem
        assert os.listdir(Path(work.path).parent) == [Path(work.path).name]
        assert isinstance(work.full("reg.io/a", "said"), scratch.ScratchUnusable)
    assert isinstance(work._replace(is_loop_filesystem=True).full("reg.io/a", "said"), scratch.ImageTooLarge)


def test_a_failing_disk_below_drains_no_node() -> None:
    """A user can fill that disk, which looks like one that fails."""
    work = scratch.Scratch("/scratch", -1, CAPS, is_loop_filesystem=True)
    with pytest.raises(scratch.ScratchUnusable), work.errors():
        raise OSError(5, "Input/output error")
    with pytest.raises(FileSystemBroken), work._replace(is_loop_filesystem=False).errors():
        raise OSError(5, "Input/output error")


# The caps of an import that no file system holds: what counts, and that looking is safe.


ROOMY = Caps(1 << 30, 1000)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_leads_nowhere_else_and_ends(directory: int, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    Watch(directory, ROOMY._replace(files=1)).look()
    deep = tmp_path
    for _ in range(scratch.DEEPEST + 1):
        deep /= "d"
        deep.mkdir()
    try:
        with pytest.raises(Exceeded):
            Watch(directory, ROOMY).look()
    finally:
        remove_tree(directory, "d", after(60))  # pytest would go down by recursion, and die of it

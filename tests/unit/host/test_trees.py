"""Trees that a job wrote are removed by descriptor, whatever it built there."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, remove_tree

as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root: mounts, devices")


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[int]:
    """Give the descriptor of the directory that holds the tree."""
    with opened_dir(str(tmp_path)) as fd:
        yield fd


def test_links_are_removed_and_never_followed(tmp_path: Path, parent: int) -> None:
    """A link in the tree, or in its place, costs its target nothing."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").symlink_to(outside / "precious")
    (tree / "dir").symlink_to(outside)
    remove_tree(parent, "tree", after(5))
    tree.symlink_to(outside)
    remove_tree(parent, "tree", after(5))
    assert not tree.is_symlink()
    assert (outside / "precious").read_text() == "x"


def test_very_deep_trees_go(tmp_path: Path, parent: int) -> None:
    """Four thousand levels exhaust neither descriptors nor the stack."""
    fd = os.open(tmp_path, os.O_RDONLY)
    for name in ["tree", *["d"] * 4000]:
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    remove_tree(parent, "tree", after(60))
    assert os.listdir(tmp_path) == []


def test_odd_names_and_types_go(tmp_path: Path, parent: int) -> None:
    """FIFOs, sockets-to-be and names that are no text are only names."""
    tree = tmp_path / "tree"
    tree.mkdir(mode=0o700)
    os.mkfifo(tree / "fifo")
    os.mkdir(os.fsencode(tree) + b"/\xff\n")
    (tree / "locked").mkdir(mode=0o000)
    remove_tree(parent, "tree", after(5))
    assert os.listdir(tmp_path) == []


def test_a_passed_deadline_leaves_the_rest_for_the_next_call(tmp_path: Path, parent: int) -> None:
    """The removal stops with ETIME, and the next one goes on."""
    (tmp_path / "tree" / "below").mkdir(parents=True)
    with pytest.raises(OSError, match="deadline") as caught:
        remove_tree(parent, "tree", after(-1))
    assert caught.value.errno == errno.ETIME
    remove_tree(parent, "tree", after(5))
    remove_tree(parent, "tree", after(5))
    assert os.listdir(tmp_path) == []


@as_root
def test_what_is_mounted_in_the_tree_is_detached_and_not_touched(tmp_path: Path, parent: int) -> None:
    """Bind mounts of the same file system, over each other and on a file, keep their sources whole."""
    source, target = tmp_path / "source", tmp_path / "tree" / "bound"
    source.mkdir()
    (source / "precious").write_text("x")
    target.mkdir(parents=True)
    (tmp_path / "tree" / "file").touch()
    for what, where in ((source, target), (source, target), (source / "precious", tmp_path / "tree" / "file")):
        subprocess.run(["/usr/bin/mount", "--bind", what, where], check=True)
    remove_tree(parent, "tree", after(5))
    assert os.listdir(tmp_path) == ["source"]
    assert (source / "precious").read_text() == "x"
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


@as_root
def test_a_mount_that_can_not_be_detached_is_not_entered(
    tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal stops there and leaves everything below the mount alone."""
    source, target = tmp_path / "source", tmp_path / "tree" / "bound"
    source.mkdir()
    (source / "precious").write_text("x")
    target.mkdir(parents=True)
    subprocess.run(["/usr/bin/mount", "--bind", source, target], check=True)
    monkeypatch.setattr(linux, "detach", lambda _: False)
    try:
        with pytest.raises(OSError, match="mounted") as caught:
            remove_tree(parent, "tree", after(5))
        assert caught.value.errno == errno.EXDEV
    finally:
        subprocess.run(["/usr/bin/umount", target], check=True)
    assert (source / "precious").read_text() == "x"


def test_names_in_the_way_do_not_keep_a_deep_tree(tmp_path: Path, parent: int) -> None:
    """A job can't guess the names that deep directories are moved to."""
    fd = os.open(tmp_path, os.O_RDONLY)
    for name in ["tree", *["d"] * 120]:
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.makedirs(tmp_path / "tree" / f".up-{os.fstat(inner).st_ino}" / "full", exist_ok=True)
        os.close(fd)
        fd = inner
    os.close(fd)
    remove_tree(parent, "tree", after(5))
    assert os.listdir(tmp_path) == []

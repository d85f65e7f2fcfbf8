"""Other users' directories on the way, and mounts inside a tree that is removed."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.host.files import Untrusted, ensure_dir, ensure_path, opened_dir
from warmstart.host.remove import remove_tree
from warmstart.host.trusted import opened_trusted


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "a" / "b"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[int]:
    with opened_dir(str(tmp_path)) as fd:
        yield fd


def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.chown(tmp_path / "a", 65534, 65534)
    for ensure in (ensure_dir, ensure_path):
        with pytest.raises(PermissionError, match="65534"):
            ensure(str(tmp_path / "a"), 0o755)


@pytest.mark.parametrize("name", ["a", "a/b"])
def test_a_strangers_directory_on_the_way(place: Path, name: str) -> None:
    """Its owner could put another in the place of what is below."""
    os.chown(place.parents[1] / name, 65534, 65534)
    with pytest.raises(Untrusted, match="belongs to uid 65534") as caught, opened_trusted(str(place)):
        pass
    assert caught.value.filename == str(place.parents[1] / name)
    with opened_trusted(str(place), {0, 65534}):
        pass


@pytest.mark.threat(13)
def test_what_is_mounted_in_the_tree_is_detached_and_not_touched(tmp_path: Path, parent: int) -> None:
    source, target = tmp_path / "source", tmp_path / "tree" / "bound"
    source.mkdir()
    (source / "precious").write_text("x")
    target.mkdir(parents=True)
    (tmp_path / "tree" / "file").touch()
    for what, where in ((source, target), (source, target), (source / "precious", tmp_path / "tree" / "file")):
        subprocess.run(["/usr/bin/mount", "--bind", what, where], check=True)
    remove_tree(parent, "tree", after(60))
    assert os.listdir(tmp_path) == ["source"]
    assert (source / "precious").read_text() == "x"
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.threat(13)
def test_a_mount_that_can_not_be_detached_is_not_entered(
    tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "tree" / "bound"
    source.mkdir()
    (source / "precious").write_text("x")
    target.mkdir(parents=True)
    subprocess.run(["/usr/bin/mount", "--bind", source, target], check=True)
    monkeypatch.setattr(linux, "detach", lambda _: False)
    try:
        with pytest.raises(OSError, match="mounted") as caught:
            remove_tree(parent, "tree", after(60))
        assert caught.value.errno == errno.EXDEV
    finally:
        subprocess.run(["/usr/bin/umount", target], check=True)
    assert (source / "precious").read_text() == "x"


def test_a_directory_that_nobody_may_list_goes(tmp_path: Path, parent: int) -> None:
    (tmp_path / "tree" / "locked" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "locked").chmod(0o000)
    remove_tree(parent, "tree", after(60))
    assert os.listdir(tmp_path) == []

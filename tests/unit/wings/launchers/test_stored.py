"""Other launchers on the store: their lock and their names, taken politely, never trusted (docs/threats.md, row 16)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from warmstart.images.reference import parse
from warmstart.wings.launchers import stored

NAME = "reg.io_a_1"


LOCK = f"{NAME}.sqsh.lock"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("nvcr.io#nvidia/pytorch:24.05-py3", ["nvcr.io_nvidia_pytorch_24.05-py3"]),
        ("ubuntu:22.04", ["ubuntu_22.04", "library_ubuntu_22.04", "docker.io_library_ubuntu_22.04"]),
        ("lmsysorg/sglang:v1", ["lmsysorg_sglang_v1", "docker.io_lmsysorg_sglang_v1"]),
    ],
)
def test_names_are_what_launchers_make_of_a_reference(text: str, names: list[str]) -> None:
    assert stored.names_of(parse(text)) == names


def test_takes_and_gives_back_and_never_unlinks(tmp_path: Path) -> None:
    """Others find it locked while it is held, the file stays, and any user's launcher can open it."""
    assert stored.try_lock(str(tmp_path), NAME) == ""
    path = tmp_path / LOCK
    inode = path.stat().st_ino
    assert path.stat().st_mode & 0o777 == 0o666
    with path.open("r+") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(stored._held.pop())
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert stored.try_lock(str(tmp_path), NAME) == stored.BUSY
    assert path.stat().st_ino == inode


@pytest.mark.threat(16)
@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "hard link", "nowhere"])
def test_what_is_no_plain_file_is_no_lock_and_no_hang(tmp_path: Path, kind: str) -> None:
    """A FIFO, a link, a directory, a second name, a missing directory: each is said, none is followed or waited for."""
    path = tmp_path / LOCK
    other = tmp_path / "other"
    other.write_text("precious")
    makes: dict[str, Callable[[], object]] = {
        "fifo": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(other),
        "directory": path.mkdir,
        "hard link": lambda: os.link(other, path),
        "nowhere": lambda: None,
    }
    makes[kind]()
    folder = tmp_path / "nowhere" if kind == "nowhere" else tmp_path
    problem = stored.try_lock(str(folder), NAME)
    assert problem not in ("", stored.BUSY)
    assert LOCK in problem
    assert other.read_text() == "precious"


def test_a_lock_whose_file_was_unlinked_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some py-filelock releases unlink it: then the lock just taken is nobody else's, and is tried again."""
    path = tmp_path / LOCK
    path.touch()
    flock = fcntl.flock

    def unlinking(fd: int, how: int) -> None:
        flock(fd, how)
        path.unlink(missing_ok=True)

    monkeypatch.setattr(fcntl, "flock", unlinking)
    assert stored.try_lock(str(tmp_path), NAME) == stored.BUSY


def test_links_lead_to_the_image_and_go_with_it(tmp_path: Path) -> None:
    """A link is kept under each name and replaced; it goes when its image has gone, others stay."""
    names, images = tmp_path / "names", tmp_path / "images"
    names.mkdir(mode=0o755)
    images.mkdir()
    one, two = images / "1.sqsh", images / "2.sqsh"
    for path in (one, two):
        path.touch()
    assert stored.link(str(names), ["a", "b"], str(one)) == 2
    assert stored.link(str(names), ["a"], str(two)) == 1
    assert os.readlink(names / "a.sqsh") == str(two)
    assert stored.forget(str(names), str(images)) == 0
    (names / "theirs").symlink_to("/nowhere/1.sqsh")
    (names / "file").touch()
    one.unlink()
    assert stored.forget(str(names), str(images)) == 1
    assert sorted(path.name for path in names.iterdir()) == ["a.sqsh", "file", "theirs"]


def test_no_links_where_others_can_write(tmp_path: Path) -> None:
    """Where somebody else could swap it, a link of ours would only lend him our name."""
    tmp_path.chmod(0o1777)
    assert stored.link(str(tmp_path), ["a"], "/store/1.sqsh") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_launchers_own_file_is_not_replaced(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "a.sqsh").write_text("theirs")
    assert stored.link(str(tmp_path), ["a"], "/store/1.sqsh") == 0
    assert (tmp_path / "a.sqsh").read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 1

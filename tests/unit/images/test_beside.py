"""The launchers' lock and names: taken politely, never trusted (threats, row 16)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from warmstart.images import launchers
from warmstart.images.reference import parse

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
    """`sed 's/[/:@#]/_/g'` of each spelling."""
    assert launchers.names_of(parse(text)) == names


def test_an_underscore_is_ambiguous() -> None:
    """`a_b` and `a/b` are one file to launchers; a reference without one means only itself."""
    assert launchers.is_unambiguous(parse("reg.io/a/b:1"))
    assert not launchers.is_unambiguous(parse("reg.io/a_b:1"))


def test_takes_and_gives_back_and_never_unlinks(tmp_path: Path) -> None:
    """Others find it locked while it is held, the file stays, and any user's launcher can open it."""
    assert launchers.try_lock(str(tmp_path), NAME) == ""
    path = tmp_path / LOCK
    inode = path.stat().st_ino
    assert path.stat().st_mode & 0o777 == 0o666
    with path.open("r+") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        launchers.unlock(NAME)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert launchers.try_lock(str(tmp_path), NAME) == launchers.BUSY
    assert path.stat().st_ino == inode


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
    problem = launchers.try_lock(str(folder), NAME)
    assert problem not in ("", launchers.BUSY)
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
    assert launchers.try_lock(str(tmp_path), NAME) == launchers.BUSY


def test_links_lead_to_the_image_and_go_with_it(tmp_path: Path) -> None:
    """A link is kept under each name and replaced; it goes when its image goes, others stay."""
    tmp_path.chmod(0o755)
    assert launchers.link(str(tmp_path), ["a", "b"], "/store/1.sqsh") == 2
    assert launchers.link(str(tmp_path), ["a"], "/store/2.sqsh") == 1
    assert os.readlink(tmp_path / "a.sqsh") == "/store/2.sqsh"
    launchers.unlink(str(tmp_path), "/store/1.sqsh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sqsh"]


def test_no_links_where_others_can_write(tmp_path: Path) -> None:
    """Where somebody else could swap it, a link of ours would only lend him our name."""
    tmp_path.chmod(0o1777)
    assert launchers.link(str(tmp_path), ["a"], "/store/1.sqsh") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_launchers_own_file_is_not_replaced(tmp_path: Path) -> None:
    """A real image under that name stays."""
    tmp_path.chmod(0o755)
    (tmp_path / "a.sqsh").write_text("theirs")
    assert launchers.link(str(tmp_path), ["a"], "/store/1.sqsh") == 0
    assert (tmp_path / "a.sqsh").read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 1

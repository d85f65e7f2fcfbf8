"""Which images of other launchers may be taken over (threats, row 2)."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.superblocks import image
from warmstart.host.files import Copied, copy_hashed
from warmstart.images import launchers
from warmstart.images.launchers import Taken
from warmstart.policy.compiled import Adopt

ME = os.geteuid()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[int]:
    """Return a descriptor of an own file to copy to."""
    fd = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a directory of ours, as its parents are, with an image in it."""
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    (folder / "a.sqsh").write_bytes(image())
    (folder / "a.sqsh").chmod(0o644)
    return folder


def fetch(target: int, shared: Path, not_before: float = 0.0, owner: int = ME) -> Taken | str:
    """Take the image `a`, or `b` before it, of our own uid over."""
    return launchers.fetch(target, [Adopt(str(shared), (owner,))], ["b", "a"], not_before)


def test_copies_bytes_to_an_own_inode(target: int, shared: Path) -> None:
    """The answer has the hash of the copied bytes, and the launcher's file is left as it was."""
    before = (shared / "a.sqsh").stat()
    taken = fetch(target, shared)
    assert taken == Taken(str(shared / "a.sqsh"), hashlib.sha256(image()).hexdigest(), before.st_mtime)
    assert os.pread(target, 1 << 20, 0) == image()
    assert os.fstat(target).st_ino != before.st_ino


def test_nothing_there_is_no_problem(target: int, shared: Path) -> None:
    """A missing file, or one older than a tag may be, is none."""
    assert fetch(target, shared, time.time() + 60) == ""
    (shared / "a.sqsh").unlink()
    assert fetch(target, shared) == ""
    assert fetch(target, shared / "nowhere") == ""


def swap_for_link(folder: Path) -> None:
    """Put a link in the file's place."""
    (folder / "a.sqsh").rename(folder / "c")
    (folder / "a.sqsh").symlink_to(folder / "c")


def swap_for_fifo(folder: Path) -> None:
    """Put a FIFO in the file's place."""
    (folder / "a.sqsh").unlink()
    os.mkfifo(folder / "a.sqsh")


CHANGES: dict[str, Callable[[Path], None]] = {
    "group": lambda folder: folder.chmod(0o775),
    "sticky": lambda folder: folder.chmod(0o1777),
    "parent": lambda folder: folder.parent.chmod(0o777),
    "writable": lambda folder: (folder / "a.sqsh").chmod(0o664),
    "hard link": lambda folder: os.link(folder / "a.sqsh", folder / "second"),
    "link": swap_for_link,
    "fifo": swap_for_fifo,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_others_could_have_put_there_is_refused(target: int, shared: Path, change: str) -> None:
    """Anything that somebody else could write, or that is no plain file, is not taken, and why is said."""
    CHANGES[change](shared)
    problem = fetch(target, shared)
    assert isinstance(problem, str)
    assert str(shared / "a.sqsh") in problem
    assert os.fstat(target).st_size == 0


@pytest.mark.skipif(ME != 0, reason="gives a file to another account")
def test_a_strangers_file_is_refused(target: int, shared: Path) -> None:
    """Its owner could still rewrite it."""
    os.chown(shared / "a.sqsh", 12345, -1)
    problem = fetch(target, shared)
    assert isinstance(problem, str)
    assert "uid 12345" in problem
    assert isinstance(fetch(target, shared, owner=12345), Taken)


def test_a_file_that_changes_while_it_is_read_is_refused(
    target: int, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that is still writing has not finished an image."""

    def slow(source: int, into: int) -> Copied:
        with (shared / "a.sqsh").open("ab") as stream:
            stream.write(b"more")
        return Copied(0, "")

    monkeypatch.setattr(launchers, "copy_hashed", slow)
    problem = fetch(target, shared)
    assert isinstance(problem, str)
    assert "changed while" in problem


def test_a_refusal_names_the_directory(target: int, shared: Path) -> None:
    """Of all that are above the image, the one that the administrator has to look at."""
    shared.parent.chmod(0o777)
    problem = fetch(target, shared)
    assert isinstance(problem, str)
    assert f"is below {shared.parent}, which can be written by others" in problem


def test_a_link_above_is_not_followed(target: int, shared: Path) -> None:
    """Whoever can move it chooses the image."""
    (shared.parent / "link").symlink_to(".")
    assert isinstance(fetch(target, shared.parent / "link" / "shared"), str)


def test_what_follows_a_refused_file_is_copied_from_the_start(
    target: int, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of the first are gone, and so is the place in the file that they took."""
    (shared / "b.sqsh").write_bytes(b"another launcher is still writing this")

    def slow(source: int, into: int) -> Copied:
        if os.fstat(source).st_ino == (shared / "b.sqsh").stat().st_ino:
            with (shared / "b.sqsh").open("ab") as stream:
                stream.write(b"more")
        return copy_hashed(source, into)

    monkeypatch.setattr(launchers, "copy_hashed", slow)
    taken = fetch(target, shared)
    assert isinstance(taken, Taken)
    assert taken.path == str(shared / "a.sqsh")
    assert os.pread(target, 1 << 20, 0) == image()

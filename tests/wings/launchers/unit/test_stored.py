"""Other launchers on the store: their lock, their names, and which of their images may be taken over."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.superblocks import image
from warmstart.host.files import Copied as CopiedBytes
from warmstart.host.files import copy_hashed
from warmstart.images.places import Copied
from warmstart.images.reference import parse
from warmstart.wings.launchers import stored
from warmstart.wings.launchers.stored import Adopt

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


def fetch(target: int, shared: Path, not_before: float = 0.0, owner: int = ME) -> Copied | str:
    """Take the image `a`, or `b` before it, of our own uid over."""
    return stored.adopt(target, [Adopt(str(shared), (owner,))], ["b", "a"], not_before)


def test_copies_bytes_to_an_own_inode(target: int, shared: Path) -> None:
    """The answer has the hash of the copied bytes, and the launcher's file is left as it was."""
    before = (shared / "a.sqsh").stat()
    taken = fetch(target, shared)
    assert taken == Copied(str(shared / "a.sqsh"), hashlib.sha256(image()).hexdigest(), before.st_mtime)
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


def test_a_file_that_changes_while_it_is_read_is_refused(
    target: int, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that is still writing has not finished an image."""

    def slow(source: int, into: int) -> CopiedBytes:
        with (shared / "a.sqsh").open("ab") as stream:
            stream.write(b"more")
        return CopiedBytes(0, "")

    monkeypatch.setattr(stored, "copy_hashed", slow)
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

    def slow(source: int, into: int) -> CopiedBytes:
        if os.fstat(source).st_ino == (shared / "b.sqsh").stat().st_ino:
            with (shared / "b.sqsh").open("ab") as stream:
                stream.write(b"more")
        return copy_hashed(source, into)

    monkeypatch.setattr(stored, "copy_hashed", slow)
    taken = fetch(target, shared)
    assert isinstance(taken, Copied)
    assert taken.path == str(shared / "a.sqsh")
    assert os.pread(target, 1 << 20, 0) == image()


# The launchers' lock and names: taken politely, never trusted (docs/threats.md, row 16).


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
    assert stored.names_of(parse(text)) == names


def test_an_underscore_is_ambiguous() -> None:
    """`a_b` and `a/b` are one file to launchers; a reference without one means only itself."""
    assert stored.is_unambiguous(parse("reg.io/a/b:1"))
    assert not stored.is_unambiguous(parse("reg.io/a_b:1"))


def test_takes_and_gives_back_and_never_unlinks(tmp_path: Path) -> None:
    """Others find it locked while it is held, the file stays, and any user's launcher can open it."""
    assert stored.try_lock(str(tmp_path), NAME) == ""
    path = tmp_path / LOCK
    inode = path.stat().st_ino
    assert path.stat().st_mode & 0o777 == 0o666
    with path.open("r+") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stored.unlock(str(tmp_path), NAME)
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
    """A real image under that name stays."""
    tmp_path.chmod(0o755)
    (tmp_path / "a.sqsh").write_text("theirs")
    assert stored.link(str(tmp_path), ["a"], "/store/1.sqsh") == 0
    assert (tmp_path / "a.sqsh").read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 1

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
from warmstart.host.files import Copied, copy_hashed
from warmstart.images.reference import parse
from warmstart.images.store import launchers
from warmstart.images.store.launchers import AdoptedImage
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


def fetch(target: int, shared: Path, not_before: float = 0.0, owner: int = ME) -> AdoptedImage | str:
    """Take the image `a`, or `b` before it, of our own uid over."""
    return launchers.adopt(target, [Adopt(str(shared), (owner,))], ["b", "a"], not_before)


def test_copies_bytes_to_an_own_inode(target: int, shared: Path) -> None:
    """The answer has the hash of the copied bytes, and the launcher's file is left as it was."""
    before = (shared / "a.sqsh").stat()
    taken = fetch(target, shared)
    assert taken == AdoptedImage(str(shared / "a.sqsh"), hashlib.sha256(image()).hexdigest(), before.st_mtime)
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
    assert isinstance(taken, AdoptedImage)
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
        launchers.unlock(str(tmp_path), NAME)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert launchers.try_lock(str(tmp_path), NAME) == launchers.BUSY
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

"""Directories and files of root's in places that others can write."""

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from warmstart.host import files
from warmstart.host.files import (
    Copied,
    ReadFailed,
    Untrusted,
    copy,
    copy_hashed,
    ensure_dir,
    ensure_path,
    open_regular,
    opened_trusted,
    read_small,
    replace_file,
)


def test_a_sites_own_directory_keeps_its_mode(tmp_path: Path) -> None:
    """A scratch directory that everybody may write stays as it is."""
    tmp_path.chmod(0o1777)
    ensure_path(str(tmp_path), 0o755)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def test_missing_parents_are_made(tmp_path: Path) -> None:
    """Parents 0755, the last one as asked, whatever the umask."""
    before = os.umask(0o077)
    try:
        ensure_path(f"{tmp_path}/a/b", 0o711)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o711


def test_a_directory_that_others_could_empty_is_refused(tmp_path: Path) -> None:
    """Without the sticky bit anybody could put a link in our directory's place."""
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="sticky"):
        ensure_path(str(tmp_path), 0o755)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: gives a directory away")
def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    """A user who came first gets nothing of ours."""
    (tmp_path / "a").mkdir()
    os.chown(tmp_path / "a", 65534, 65534)
    for ensure in (ensure_dir, ensure_path):
        with pytest.raises(PermissionError, match="65534"):
            ensure(str(tmp_path / "a"), 0o755)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """Neither a FIFO, which would hang, nor a link, nor a directory, nor more than the limit."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "large").write_bytes(b"x" * 11)
    for name, number in (("fifo", errno.EINVAL), ("link", errno.ELOOP), (".", errno.EINVAL)):
        with pytest.raises(OSError) as caught:
            open_regular(str(tmp_path / name))
        assert caught.value.errno == number
    with pytest.raises(OSError, match="larger than 10"):
        read_small(str(tmp_path / "large"), 10)
    assert read_small(str(tmp_path / "large"), 11) == b"x" * 11


def test_reading_is_bounded(tmp_path: Path) -> None:
    """From where the descriptor stands, to the end or to the bound, however little one read gives."""
    (tmp_path / "file").write_bytes(b"0123456789")
    reading, writing = os.pipe()
    os.write(writing, b"abc")
    with open(tmp_path / "file", "rb") as file, open(reading, "rb"):
        assert files.read_up_to(file.fileno(), 4) == b"0123"
        assert files.read_up_to(file.fileno(), 4) == b"4567"
        assert files.read_up_to(file.fileno(), 4) == b"89"
        assert files.read_up_to(file.fileno(), 4) == b""
        os.write(writing, b"def")
        late = threading.Timer(0.05, os.close, [writing])
        late.start()
        assert files.read_up_to(reading, 100) == b"abcdef"
        late.join()


def test_a_failed_replacement_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up in the middle costs nothing that was there."""
    (tmp_path / "file").write_text("old")

    def full(fd: int, data: bytes) -> None:
        os.write(fd, data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_all", full)
    with files.opened_dir(str(tmp_path)) as fd, pytest.raises(OSError, match="space"):
        replace_file(fd, "file", b"new", 0o600)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


def test_a_name_may_lead_to_another_file_by_now(tmp_path: Path) -> None:
    """Gone, replaced, or a link to the same file: then a lock on the open one keeps nobody out."""
    path = tmp_path / "lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        with files.opened_dir(str(tmp_path)) as folder:
            assert files.is_at(fd, str(path))
            assert files.is_at(fd, "lock", folder)
            path.rename(tmp_path / "moved")
            assert not files.is_at(fd, "lock", folder)
            path.symlink_to("moved")
            assert not files.is_at(fd, "lock", folder)
            path.unlink()
            path.write_text("")
            assert not files.is_at(fd, str(path))
    finally:
        os.close(fd)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    """Give an open file of 2.5 chunks, whose position is somewhere in it."""
    (tmp_path / "source").write_bytes(CONTENT)
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    os.lseek(fd, 17, os.SEEK_SET)
    yield fd
    assert os.lseek(fd, 0, os.SEEK_CUR) == 17
    os.close(fd)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[int]:
    """Give an empty open file."""
    fd = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


CONTENT = os.urandom(5 * files.CHUNK // 2)


def known(data: bytes) -> Copied:
    """Return what a copy of these bytes answers."""
    return Copied(len(data), hashlib.sha256(data).hexdigest())


def test_a_copy_is_hashed_on_the_way(source: int, target: int) -> None:
    """All of it, whatever the source's position is."""
    assert copy_hashed(source, target) == known(CONTENT)
    assert os.pread(target, len(CONTENT) + 1, 0) == CONTENT
    assert copy_hashed(source) == known(CONTENT)


def test_a_copy_without_a_hash(source: int, target: int) -> None:
    """The same bytes."""
    assert copy(source, target) == len(CONTENT)
    assert os.pread(target, len(CONTENT) + 1, 0) == CONTENT


@pytest.mark.parametrize("most", [0, 1, files.CHUNK, files.CHUNK + 1, len(CONTENT), len(CONTENT) + 1])
def test_a_copy_has_bounds(source: int, target: int, most: int) -> None:
    """From the offset, and at most so many bytes; a target is written from where it stands."""
    os.write(target, b"before")
    part = CONTENT[5 : 5 + most]
    assert copy_hashed(source, target, offset=5, most=most) == known(part)
    assert os.pread(target, len(CONTENT) + 10, 0) == b"before" + part


def test_a_copy_tells_whose_error_it_is(source: int, target: int, tmp_path: Path) -> None:
    """`ReadFailed` is the source's; what the target says passes as it is."""
    with files.opened_dir(str(tmp_path)) as directory:
        with pytest.raises(ReadFailed) as caught:
            copy_hashed(directory, target)
        assert (caught.value.errno, caught.value.strerror) == (errno.EISDIR, os.strerror(errno.EISDIR))
        with pytest.raises(ReadFailed):
            copy(directory, target)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        for copying in (copy, copy_hashed):
            with pytest.raises(OSError, match="No space left") as refused:
                copying(source, full)
            assert not isinstance(refused.value, ReadFailed)
    finally:
        os.close(full)


def test_a_copy_can_be_ended(source: int, target: int) -> None:
    """`watch` is asked before every read, and what it raises is what the copy raises."""
    asked: list[int] = []

    def watch() -> None:
        asked.append(os.fstat(target).st_size)
        if len(asked) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        copy_hashed(source, target, watch=watch)
    assert asked == [0, files.CHUNK, 2 * files.CHUNK]


MINE = frozenset({0, os.geteuid()})


@pytest.mark.parametrize(
    ("mode", "strict", "lenient"),
    [
        (0o755, "", ""),
        (0o700, "", ""),
        (0o775, "can be written by others", "can be written by others and is not sticky"),
        (0o757, "can be written by others", "can be written by others and is not sticky"),
        (0o1777, "can be written by others", ""),
    ],
)
def test_what_others_could_change(tmp_path: Path, mode: int, strict: str, lenient: str) -> None:
    """The group and the world count alike; a sticky directory does where that is said."""
    tmp_path.chmod(mode)
    status = tmp_path.stat()
    assert files.weakness(status, MINE) == strict
    assert files.weakness(status, MINE, sticky=True) == lenient
    assert files.weakness(status, {status.st_uid + 1}) == f"belongs to uid {status.st_uid}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give a directory `b` in one `a`."""
    (tmp_path / "a").mkdir(mode=0o755)
    (tmp_path / "a" / "b").mkdir(mode=0o755)
    return tmp_path / "a" / "b"


@pytest.mark.parametrize("flags", [files.DIRECTORY, files.PATH])
def test_a_path_that_is_the_owners_all_the_way(place: Path, flags: int) -> None:
    """Its descriptor is that of the directory; `/` is a path, too."""
    with opened_trusted(str(place), MINE, flags=flags) as fd:
        assert os.path.samestat(os.fstat(fd), place.stat())
    with opened_trusted("/", MINE, flags=flags) as fd:
        assert os.path.samestat(os.fstat(fd), os.stat("/"))


@pytest.mark.parametrize("name", ["a", "a/b"])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_directory_on_the_way_that_others_can_write(place: Path, name: str, mode: int) -> None:
    """The error names it, whether it is the last one or one above."""
    weak = place.parents[1] / name
    weak.chmod(mode)
    for sticky in (False, True):
        with pytest.raises(Untrusted, match="can be written by others") as caught, opened(place, sticky=sticky):
            pass
        assert (caught.value.errno, caught.value.filename) == (errno.EPERM, str(weak))


def test_a_sticky_directory_may_be_above(place: Path) -> None:
    """At the end of the path only where the caller says so: names can be added there."""
    place.parent.chmod(0o1777)
    with opened(place):
        pass
    place.chmod(0o1777)
    with opened(place, sticky=True):
        pass
    with pytest.raises(Untrusted), opened(place):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: gives directories away")
@pytest.mark.parametrize("name", ["a", "a/b"])
def test_a_strangers_directory_on_the_way(place: Path, name: str) -> None:
    """Its owner could put another in the place of what is below."""
    os.chown(place.parents[1] / name, 65534, 65534)
    with pytest.raises(Untrusted, match="belongs to uid 65534") as caught, opened(place):
        pass
    assert caught.value.filename == str(place.parents[1] / name)
    with opened_trusted(str(place), {0, 65534}):
        pass


@pytest.mark.parametrize("name", ["a", "a/b"])
def test_a_link_on_the_way_is_not_followed(place: Path, name: str) -> None:
    """Not even to a directory that would do; the error names the link."""
    path = place.parents[1] / name
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")
    for flags in (files.DIRECTORY, files.PATH):
        with pytest.raises(NotADirectoryError) as caught, opened_trusted(str(place), MINE, flags=flags):
            pass
        assert caught.value.filename == str(path)


def test_what_is_missing_is_made_if_that_is_wanted(place: Path) -> None:
    """Directories above 0755, the last one as asked; one that is there keeps its mode."""
    wanted = place / "c" / "d"
    with pytest.raises(FileNotFoundError) as caught, opened(wanted):
        pass
    assert caught.value.filename == str(wanted.parent)
    for _ in range(2):
        with opened_trusted(str(wanted), MINE, make=0o700):
            assert stat.S_IMODE(wanted.parent.stat().st_mode) == 0o755
            assert stat.S_IMODE(wanted.stat().st_mode) == 0o700
    with opened_trusted(str(place), MINE, make=0o700):
        assert stat.S_IMODE(place.stat().st_mode) == 0o755


def opened(path: Path, *, sticky: bool = False) -> AbstractContextManager[int]:
    """Open a path that is to be ours, or root's."""
    return opened_trusted(str(path), MINE, sticky=sticky)


@pytest.mark.parametrize("failing", ["nothing", "a directory on the way", "the caller"])
def test_no_descriptor_is_left(place: Path, failing: str) -> None:
    """Whatever happens."""
    before = os.listdir("/proc/self/fd")
    if failing == "a directory on the way":
        place.chmod(0o777)
    with suppress(OSError), opened(place):
        if failing == "the caller":
            raise OSError
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_the_names_in_a_directory(tmp_path: Path) -> None:
    """Sorted, and none of a directory that is not there; another error is not that."""
    for name in ("b", "a"):
        (tmp_path / name).touch()
    assert files.names_in(str(tmp_path)) == ["a", "b"]
    assert files.names_in(str(tmp_path / "none")) == []
    with pytest.raises(NotADirectoryError):
        files.names_in(str(tmp_path / "a"))

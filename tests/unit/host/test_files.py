"""Directories and files of root's in places that others can write."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmstart.host import files
from warmstart.host.files import (
    Copied,
    ReadFailed,
    copy,
    copy_hashed,
    ensure_dir,
    ensure_path,
    open_regular,
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

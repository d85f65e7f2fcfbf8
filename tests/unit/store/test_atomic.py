"""A file of the store appears whole under its final name, and never takes another's place."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from warmstart.host.files import opened_dir
from warmstart.store import atomic

OWNER = "n1-0a1b2c3d"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    with opened_dir(str(tmp_path)) as fd:
        yield fd


def publish(directory: int, name: str, data: bytes) -> bool:
    with atomic.temp_file(directory, OWNER) as (temp, fd):
        os.write(fd, data)
        return atomic.publish(directory, temp, fd, name)


def test_a_temporary_file_tells_its_owner_and_goes(directory: int, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with suppress(RuntimeError), atomic.temp_file(directory, OWNER, 0o640) as (name, fd):
            assert name.startswith(f"{atomic.TEMP_PREFIX}{OWNER}-{os.getpid()}-")
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640
            raise RuntimeError
    finally:
        os.umask(before)
    assert os.listdir(tmp_path) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_an_error_names_the_directory_since_a_temporary_files_name_says_nothing_to_a_user() -> None:
    with opened_dir("/proc/sys") as fd, pytest.raises(OSError) as caught, atomic.temp_file(fd, OWNER):
        pass
    assert caught.value.filename == "/proc/sys"


def test_what_is_published_is_whole_and_alone(directory: int, tmp_path: Path) -> None:
    assert publish(directory, "image", b"whole")
    assert os.listdir(tmp_path) == ["image"]
    assert (tmp_path / "image").read_bytes() == b"whole"
    assert stat.S_IMODE((tmp_path / "image").stat().st_mode) == 0o444


def test_the_first_publisher_wins(directory: int, tmp_path: Path) -> None:
    assert publish(directory, "image", b"first")
    assert not publish(directory, "image", b"second")
    assert (tmp_path / "image").read_bytes() == b"first"
    (tmp_path / "link").symlink_to("nowhere")
    assert not publish(directory, "link", b"third")
    assert sorted(os.listdir(tmp_path)) == ["image", "link"]


def test_a_link_that_was_repeated_is_no_defeat(directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS may answer EEXIST to a request that it has done: the inode tells."""
    real = os.link

    def repeated(*args: str, **kwargs: int) -> None:
        real(*args, **kwargs)  # type: ignore[arg-type]
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", repeated)
    assert publish(directory, "image", b"x")


def test_a_pointer_is_replaced_whole(directory: int, tmp_path: Path) -> None:
    atomic.replace(directory, OWNER, "index", b"old")
    with (tmp_path / "index").open("rb") as reader:
        atomic.replace(directory, OWNER, "index", b"new", 0o400)
        assert reader.read() == b"old"
    assert (tmp_path / "index").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["index"]


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_directory_that_can_not_be_synced(
    directory: int, monkeypatch: pytest.MonkeyPatch, number: int, fails: bool
) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if fd == directory:
            raise OSError(number, os.strerror(number))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    if fails:
        with pytest.raises(OSError, match="Input/output"):
            publish(directory, "image", b"x")
    else:
        assert publish(directory, "image", b"x")

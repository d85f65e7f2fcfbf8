"""Taking the importer's result: only an inode that nobody else has, or can get."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmstart.host.files import opened_dir
from warmstart.images.producer import ImageNotOurs, claim


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """Return a descriptor of a directory with one file, `image`."""
    (tmp_path / "image").write_bytes(b"x")
    with opened_dir(str(tmp_path)) as fd:
        yield fd


def test_the_file_becomes_read_only_and_ours(directory: int) -> None:
    """What is taken has mode 0444 and can be read."""
    fd = claim(directory, "image", os.geteuid())
    try:
        assert os.fstat(fd).st_mode & 0o7777 == 0o444
        assert os.fstat(fd).st_uid == os.geteuid()
        assert os.pread(fd, 9, 0) == b"x"
    finally:
        os.close(fd)


def test_an_open_writer_is_noticed(directory: int, tmp_path: Path) -> None:
    """As long as any descriptor can write, the file is not taken; afterwards it is."""
    with (tmp_path / "image").open("r+b"):
        with pytest.raises(ImageNotOurs) as raised:
            claim(directory, "image", os.geteuid())
        assert raised.value.fields["problem"] == "somebody has it open for writing"
    os.close(claim(directory, "image", os.geteuid()))


def test_refuses_other_inodes(directory: int, tmp_path: Path) -> None:
    """A second link, another owner, a symbolic link, a FIFO and nothing at all are refused."""
    os.link(tmp_path / "image", tmp_path / "second")
    (tmp_path / "link").symlink_to("image")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "foreign").touch()
    for name, uid in (("image", os.geteuid()), ("link", os.geteuid()), ("fifo", os.geteuid())):
        with pytest.raises(ImageNotOurs):
            claim(directory, name, uid)
    for name in ("foreign", "missing"):
        with pytest.raises(ImageNotOurs):
            claim(directory, name, os.geteuid() + 1)

"""The producer of an image: which result it takes from the importer, and what waiters hear of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmstart.host.files import opened_dir
from warmstart.images import producer
from warmstart.images.producer import ImageNotOurs, claim


@pytest.fixture
def result_directory(tmp_path: Path) -> Iterator[int]:
    """Return a descriptor of a directory with one file, `image`."""
    (tmp_path / "image").write_bytes(b"x")
    with opened_dir(str(tmp_path)) as fd:
        yield fd


def test_the_file_becomes_read_only_and_ours(result_directory: int) -> None:
    """What is taken has mode 0444 and can be read."""
    fd = claim(result_directory, "image", os.geteuid())
    try:
        assert os.fstat(fd).st_mode & 0o7777 == 0o444
        assert os.fstat(fd).st_uid == os.geteuid()
        assert os.pread(fd, 9, 0) == b"x"
    finally:
        os.close(fd)


def test_an_open_writer_is_noticed(result_directory: int, tmp_path: Path) -> None:
    """As long as any descriptor can write, the file is not taken; afterwards it is."""
    with (tmp_path / "image").open("r+b"):
        with pytest.raises(ImageNotOurs) as raised:
            claim(result_directory, "image", os.geteuid())
        assert raised.value.fields["problem"] == "a process has it open for writing"
    os.close(claim(result_directory, "image", os.geteuid()))


def test_refuses_other_inodes(result_directory: int, tmp_path: Path) -> None:
    """A second link, another owner, a symbolic link, a FIFO and nothing at all are refused."""
    os.link(tmp_path / "image", tmp_path / "second")
    (tmp_path / "link").symlink_to("image")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "foreign").touch()
    for name, uid in (("image", os.geteuid()), ("link", os.geteuid()), ("fifo", os.geteuid())):
        with pytest.raises(ImageNotOurs):
            claim(result_directory, name, uid)
    for name in ("foreign", "missing"):
        with pytest.raises(ImageNotOurs):
            claim(result_directory, name, os.geteuid() + 1)


# What waiters hear while a producer works.


@pytest.fixture
def progress_directory(tmp_path: Path) -> Iterator[int]:
    """Return a descriptor of a directory with two blocks near its top and one far below."""
    for path in ("a", "layers/sha256/b", "tree/1/2/3/c"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"x" * 4096)
    (tmp_path / "link").symlink_to("/usr")
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_measures_what_lies_near_the_top(progress_directory: int, tmp_path: Path) -> None:
    """Links are not followed, and an unpacked tree is not walked."""
    before = producer.measure(progress_directory)
    (tmp_path / "tree" / "1" / "2" / "3" / "d").write_bytes(b"x" * 65536)
    assert producer.measure(progress_directory) == before
    (tmp_path / "layers" / "sha256" / "e").write_bytes(b"x" * 65536)
    assert producer.measure(progress_directory) - before >= 65536


def test_tells_from_a_process_of_its_own(progress_directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It speaks while the work goes on, and is gone afterwards."""
    reader, writer = os.pipe()
    monkeypatch.setattr(producer, "PROGRESS_S", 0.01)

    def tell(count: int) -> None:
        os.write(writer, f"{os.getpid()} {count}\n".encode())

    with producer.report_progress(progress_directory, tell):
        pid, count = os.read(reader, 100).split()[:2]
    assert int(pid) != os.getpid()
    assert int(count) >= 4096
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(("count", "words"), [(0, "0 B"), (2048, "2 KiB"), (3 << 20, "3 MiB"), (5 << 29, "2.5 GiB")])
def test_says_sizes_in_words(count: int, words: str) -> None:
    """A person reads it."""
    assert producer.format_size(count) == words

"""What waiters hear while a producer works."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmstart.images import producer


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """Return a descriptor of a directory with two blocks near its top and one far below."""
    for path in ("a", "layers/sha256/b", "tree/1/2/3/c"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"x" * 4096)
    (tmp_path / "link").symlink_to("/usr")
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_measures_what_lies_near_the_top(directory: int, tmp_path: Path) -> None:
    """Links are not followed, and an unpacked tree is not walked."""
    before = producer.measure(directory)
    (tmp_path / "tree" / "1" / "2" / "3" / "d").write_bytes(b"x" * 65536)
    assert producer.measure(directory) == before
    (tmp_path / "layers" / "sha256" / "e").write_bytes(b"x" * 65536)
    assert producer.measure(directory) - before >= 65536


def test_tells_from_a_process_of_its_own(directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It speaks while the work goes on, and is gone afterwards."""
    reader, writer = os.pipe()
    monkeypatch.setattr(producer, "EVERY_S", 0.01)

    def tell(count: int) -> None:
        os.write(writer, f"{os.getpid()} {count}\n".encode())

    with producer.told(directory, tell):
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

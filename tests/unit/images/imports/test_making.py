"""The producer of an image: which result it takes from the importer, and what waiters hear of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.image_site import RULES, InlineWorker, client, site
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.images.imports import making, waiting
from warmstart.images.imports.making import ImageNotOurs, claim
from warmstart.images.query import query_by_rules
from warmstart.images.reference import parse
from warmstart.images.store import published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.published import ImageProducer

pytestmark = pytest.mark.threat(11)


@pytest.fixture
def result_directory(tmp_path: Path) -> Iterator[int]:
    """Return a descriptor of a directory with one file, `image`."""
    (tmp_path / "image").write_bytes(b"x")
    with opened_dir(str(tmp_path)) as fd:
        yield fd


def test_the_file_becomes_read_only_and_ours(result_directory: int) -> None:
    fd = claim(result_directory, "image", os.geteuid())
    try:
        assert os.fstat(fd).st_mode & 0o7777 == 0o444
        assert os.fstat(fd).st_uid == os.geteuid()
        assert os.pread(fd, 9, 0) == b"x"
    finally:
        os.close(fd)


def test_an_open_writer_is_noticed(result_directory: int, tmp_path: Path) -> None:
    with (tmp_path / "image").open("r+b"):
        with pytest.raises(ImageNotOurs) as raised:
            claim(result_directory, "image", os.geteuid())
        assert raised.value.fields["problem"] == "a process has it open for writing"
    os.close(claim(result_directory, "image", os.geteuid()))


def test_refuses_other_inodes(result_directory: int, tmp_path: Path) -> None:
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


def test_tells_waiters_of_each_phase_and_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flight = making.begin(query_by_rules(parse("reg.io/a:1"), RULES, "none1"), site(tmp_path, tmp_path), after(9))
    assert flight is not None
    teller = InlineWorker()
    monkeypatch.setattr(ImageStoreClient, "separate", lambda _: client(tmp_path, teller))
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    said = []
    with making._reporting(flight) as report:
        for phase, done, later in (
            ("fetching", 0, 0.0),
            ("fetching", 1 << 20, 0.5),
            ("fetching", 2 << 20, 2.0),
            ("unpacking", 3 << 20, 0.0),
        ):
            now[0] += later
            report(phase, done)
            said.append(waiting.describe_producer(flight.query, flight.site).rpartition(", now ")[2])
    assert said == ["fetching it", "fetching it", "fetching it, 2MiB so far", "unpacking it, 3MiB so far"]
    assert teller.calls == ["announce"] * 3


@pytest.mark.parametrize(("recorded", "tries"), [(True, 3), (False, 6)])
def test_who_is_not_elected_gives_up_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool, tries: int
) -> None:
    query, here = query_by_rules(parse("reg.io/a:1"), RULES, "none1"), site(tmp_path, tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    asked = []

    def held(_store: str, _key: str, _producer: ImageProducer, _owner: str) -> str | None:
        asked.append(1)
        return "" if len(asked) == tries and not recorded else None

    monkeypatch.setattr(published, "begin", held)
    monkeypatch.setattr(published, "producer_of", lambda *_: ImageProducer("n9", 9, 9, "x") if recorded else None)
    monkeypatch.setattr(InlineWorker, "run", lambda _self, _deadline, function, *args: function(*args))
    assert (making.elect(query, here, after(9)) is None) == recorded
    assert len(asked) == tries

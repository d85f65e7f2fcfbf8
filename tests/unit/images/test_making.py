"""The producer of an image: which result it takes from the importer, whom it keeps from importing, what others hear."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, cast

import pytest

from tests.lib import image_site
from tests.lib.image_site import HEX, Elsewhere, InlineWorker, put_image
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.images.importers.base import ImageNotFound, RegistryUnreachable
from warmstart.images.imports import making, waiting
from warmstart.images.imports.making import Flight, ImageNotOurs, claim
from warmstart.images.query import Obtained, Site, as_obtained, query_by_rules
from warmstart.images.reference import parse
from warmstart.images.store import eviction, published
from warmstart.images.store.layout import Charged, key_of
from warmstart.images.store.published import ImageProducer, RememberedFailure
from warmstart.store.locks import HeldLock

BY_DIGEST = parse(f"reg.io/a@sha256:{HEX}")
LOCK = f"{key_of(BY_DIGEST.canonical())}.{image_site.KIND}"
NOT_FOUND = RememberedFailure("image-not-found", {"image": "reg.io/a"})


@pytest.fixture
def result_directory(tmp_path: Path) -> Iterator[int]:
    """Return a descriptor of a directory with one file, `image`."""
    (tmp_path / "image").write_bytes(b"x")
    with opened_dir(str(tmp_path)) as fd:
        yield fd


@pytest.mark.threat(11)
def test_the_file_becomes_read_only_and_ours(result_directory: int) -> None:
    fd = claim(result_directory, "image", os.geteuid())
    try:
        assert os.fstat(fd).st_mode & 0o7777 == 0o444
        assert os.fstat(fd).st_uid == os.geteuid()
        assert os.pread(fd, 9, 0) == b"x"
    finally:
        os.close(fd)


@pytest.mark.threat(11)
def test_an_open_writer_is_noticed(result_directory: int, tmp_path: Path) -> None:
    with (tmp_path / "image").open("r+b"), pytest.raises(ImageNotOurs, match="a process has it open for writing"):
        claim(result_directory, "image", os.geteuid())
    os.close(claim(result_directory, "image", os.geteuid()))


@pytest.mark.threat(11)
def test_no_other_inode_is_taken(result_directory: int, tmp_path: Path) -> None:
    os.link(tmp_path / "image", tmp_path / "second")
    (tmp_path / "link").symlink_to("image")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "foreign").touch()
    me = os.geteuid()
    for name, uid in (("image", me), ("link", me), ("fifo", me), ("foreign", me + 1), ("missing", me + 1)):
        with pytest.raises(ImageNotOurs):
            claim(result_directory, name, uid)


def flight_of(site: Site) -> Flight:
    """Return the flight of an import that has just ended."""
    with making.begun(query_by_rules(parse("reg.io/a:1"), site.rules, site.recipe), site, after(9)) as flight:
        assert flight is not None
        return flight


@pytest.mark.threat(11)
def test_waiters_hear_of_each_phase_and_now_and_then_how_far_it_is(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    query, now, said = query_by_rules(parse("reg.io/a:1"), site.rules, site.recipe), [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with making.begun(query, site, after(9)) as flight:
        assert flight is not None
        report = making._reporting(flight)
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
    assert cast(InlineWorker, site.store.worker).calls.count("announce") == 3


@pytest.mark.threat(11)
@pytest.mark.parametrize(("recorded", "tries"), [(True, 3), (False, 6)])
def test_who_is_not_elected_gives_up_soon(
    site: Site, monkeypatch: pytest.MonkeyPatch, recorded: bool, tries: int
) -> None:
    """Where a producer has said who it is. Otherwise the lock may be a waiter's, who only looks, and is free again."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    asked = []

    def held(_store: str, _key: str, _producer: ImageProducer, _owner: str) -> str | None:
        asked.append(1)
        return "" if len(asked) == tries and not recorded else None

    monkeypatch.setattr(published, "begin", held)
    monkeypatch.setattr(published, "producer_of", lambda *_: ImageProducer("n9", 9, 9, "x") if recorded else None)
    monkeypatch.setattr(published, "end", lambda *_: None)
    monkeypatch.setattr(InlineWorker, "run", lambda _self, _deadline, function, *args: function(*args))
    query = query_by_rules(parse("reg.io/a:1"), site.rules, site.recipe)
    with making.elected(query, site, after(9)) as flight:
        assert (flight is None) == recorded
    assert len(asked) == tries


# Which failures the next one hears.


def nothing_to_import(*_: object) -> NoReturn:
    raise AssertionError("imported")


def test_the_locks_holder_looks_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that was published between the look-up and the lock is not imported again."""
    begin = published.begin

    def late(store: str, key: str, producer: ImageProducer, writer: str) -> str | None:
        put_image(site)
        return begin(store, key, producer, writer)

    monkeypatch.setattr(published, "begin", late)
    monkeypatch.setattr(making, "_import", nothing_to_import)
    assert making.obtain(BY_DIGEST, site, after(5)).how == "reused"


@pytest.mark.threat(15)
def test_an_outage_is_not_remembered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def down(*_: object) -> NoReturn:
        asked.append(1)
        raise RegistryUnreachable(image="reg.io/a", problem="x")

    monkeypatch.setattr(making, "_import", down)
    for _ in range(2):
        with pytest.raises(RegistryUnreachable):
            making.obtain(BY_DIGEST, site, after(5))
    assert len(asked) == 2


def test_a_definitive_failure_counts_for_half_a_minute(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """One from far in the future, or a damaged one, does not."""
    monkeypatch.setattr(making, "_import", nothing_to_import)
    published.remember(site.store.path, LOCK, NOT_FOUND, "test")
    with pytest.raises(ImageNotFound):
        making.obtain(BY_DIGEST, site, after(5))
    path = Path(site.store.path) / "images" / "failed" / f"{LOCK}.json"
    for content in ("[]", "{", json.dumps({"at": time.time() - 31, "code": NOT_FOUND.code, "fields": {}}),
                    json.dumps({"at": time.time() + 9999, "code": NOT_FOUND.code, "fields": {}})):  # fmt: skip
        path.chmod(0o644)
        path.write_text(content)
        with pytest.raises(AssertionError, match="imported"):
            making.obtain(BY_DIGEST, site, after(5))


def test_a_store_without_locks_is_said_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOLCK: the import goes on, and its answer has the reason for one warning."""

    def make(flight: Flight) -> Obtained:
        put_image(site)
        image = as_obtained(site.store.find(flight.query, flight.deadline), "imported")
        assert image
        return image

    lock = HeldLock(None, "No locks available")
    monkeypatch.setattr(published, "try_lock", lambda *_, **__: lock)
    monkeypatch.setattr(making, "_import", make)
    assert making.obtain(BY_DIGEST, site, after(5)).missing.lockless == "No locks available"
    assert making.obtain(BY_DIGEST, site, after(5)).missing.lockless == ""


# Places where others have images.


def test_others_are_kept_from_importing(site: Site) -> None:
    """In the block; why that could not be had is passed on."""
    seen: list[str] = []
    there = (Elsewhere(seen), Elsewhere([], unheld="odd"))
    with making._places_held(flight_of(site._replace(places=lambda: there))) as problem:
        assert (problem, seen) == ("odd", ["held reg.io/a:1"])
    assert seen == ["held reg.io/a:1", "released"]


@pytest.mark.parametrize(("uid", "shown"), [(-1, ["reg.io/a:1 is x.sqsh"]), (7, [])])
def test_images_of_the_policy_are_shown_and_none_that_a_user_chose(site: Site, uid: int, shown: list[str]) -> None:
    seen: list[str] = []
    site = site._replace(places=lambda: (Elsewhere(seen),), charged=Charged("u", uid))
    made = Obtained("x", f"{site.store.path}/images/x.sqsh", f"sha256:{HEX}", 1, "imported", 0.0)
    making._point(flight_of(site), made, 1.0)
    assert seen == shown


@pytest.mark.parametrize("evicted", [["x"], []])
def test_places_forget_what_was_evicted(site: Site, monkeypatch: pytest.MonkeyPatch, evicted: list[str]) -> None:
    seen: list[str] = []
    flight = flight_of(site._replace(places=lambda: (Elsewhere(seen),)))
    monkeypatch.setattr(eviction, "make_room", lambda *_: evicted)
    monkeypatch.setattr(InlineWorker, "run", lambda _self, _deadline, function, *args: function(*args))
    assert making._make_room(flight, 1, site.charged) == evicted
    assert seen == ["forgets"] * len(evicted)

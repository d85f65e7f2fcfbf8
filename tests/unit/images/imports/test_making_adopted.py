"""Images that other places have: an import adopts them, keeps others from importing, and shows what it has made."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import image_site
from tests.support.image_site import CAPS, Elsewhere, InlineWorker
from tests.support.superblocks import image
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.images.imports import making, verify
from warmstart.images.imports.making import Flight
from warmstart.images.imports.verify import Listing
from warmstart.images.query import Obtained, Site, query_by_rules
from warmstart.images.reference import parse
from warmstart.images.scratch import Scratch
from warmstart.images.squashfs import ImageInvalid
from warmstart.images.store import eviction, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import Charged, digest_of

TAG = parse("reg.io/a:1")
HEX = hashlib.sha256(image()).hexdigest()


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Give an image that another place has."""
    (tmp_path / "theirs").write_bytes(image())
    return tmp_path / "theirs"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Give a site with an empty store of ours, whose imports work in a plain directory and check no listing."""
    (tmp_path / "store").mkdir()
    (tmp_path / "work").mkdir()

    @contextmanager
    def work(*_: object) -> Iterator[Scratch]:
        with opened_dir(str(tmp_path / "work")) as fd:
            yield Scratch(str(tmp_path / "work"), fd, CAPS)

    monkeypatch.setattr(making, "_scratch", work)
    monkeypatch.setattr(verify, "check_listing", lambda *_: Listing(3, 9000))
    with ImageStoreClient.of(Identity("me", os.getuid(), os.getgid()), str(tmp_path / "store")) as store:
        yield image_site.site(tmp_path / "store", tmp_path / "workspace")._replace(store=store)


def flight_of(site: Site) -> Flight:
    """Begin an import."""
    flight = making.begin(query_by_rules(TAG, site.rules, site.recipe), site, after(30))
    assert flight is not None
    return flight


def test_an_image_is_adopted(site: Site, theirs: Path, tmp_path: Path) -> None:
    """By its own SHA-256, and the tag means it; of several places the first that has one counts."""
    site = site._replace(places=lambda: (Elsewhere(theirs, problem="odd"), Elsewhere(theirs)))
    found = making.adopt(TAG, site, after(30))
    assert isinstance(found, Obtained)
    assert (found.how, found.digest, Path(found.path).read_bytes()) == ("adopted", f"adopted:{HEX}", image())
    assert digest_of(found.name) == found.digest
    assert making.obtain(TAG, site, after(30)).path == found.path
    assert published.recorded(site.store.path, found.name)[1:] == (3, 9000)
    assert list((tmp_path / "work").iterdir()) == []


def test_why_nothing_is_adopted(site: Site, theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No place, none that says why, one that does, an image that is no whole one, and an import under way."""

    def broken(*_: object) -> None:
        raise ImageInvalid(problem="short")

    assert making.adopt(TAG, site, after(30)) == ""
    odd = site._replace(places=lambda: (Elsewhere(theirs, problem="odd"),))
    assert making.adopt(TAG, odd, after(30)) == "odd"
    monkeypatch.setattr(verify, "check_listing", broken)
    whole = site._replace(places=lambda: (Elsewhere(theirs),))
    assert "short" in str(making.adopt(TAG, whole, after(30)))
    with site.store.separate() as other:
        flight_of(site._replace(store=other))
        assert "imported by pid" in str(making.adopt(TAG, whole, after(30)))


def test_others_are_kept_from_importing(site: Site, theirs: Path) -> None:
    """In the block; why that could not be had is passed on."""
    seen: list[str] = []
    there = (Elsewhere(theirs, seen), Elsewhere(theirs, unheld="odd"))
    with making._places_held(flight_of(site._replace(places=lambda: there))) as problem:
        assert (problem, seen) == ("odd", ["held reg.io/a:1"])
    assert seen == ["held reg.io/a:1", "released"]


@pytest.mark.parametrize(
    ("digest", "uid", "shown"),
    [(f"sha256:{HEX}", -1, ["reg.io/a:1 is x.sqsh"]), (f"sha256:{HEX}", 7, []), (f"adopted:{HEX}", -1, [])],
)
def test_images_of_the_policy_are_shown(site: Site, theirs: Path, digest: str, uid: int, shown: list[str]) -> None:
    """Neither those that a user chose, nor what comes from such a place."""
    seen: list[str] = []
    site = site._replace(places=lambda: (Elsewhere(theirs, seen),), charged=Charged("u", uid, ""))
    made = Obtained("x", f"{site.store.path}/images/x.sqsh", digest, 1, "imported", 0.0)
    making._point(flight_of(site), made, 1.0)
    assert seen == shown


@pytest.mark.parametrize("evicted", [["x"], []])
def test_places_forget_what_was_evicted(
    tmp_path: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch, evicted: list[str]
) -> None:
    """As soon as it has gone."""
    seen: list[str] = []
    site = image_site.site(tmp_path, tmp_path)._replace(places=lambda: (Elsewhere(theirs, seen),))
    flight = flight_of(site)
    monkeypatch.setattr(eviction, "make_room", lambda *_: evicted)
    monkeypatch.setattr(InlineWorker, "run", lambda _self, _deadline, function, *args: function(*args))
    assert making._make_room(flight, 1, site.charged) == evicted
    assert seen == ["forgets"] * len(evicted)

"""Places where others have images: an import keeps others from importing, and shows what it has made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib import image_site
from tests.lib.image_site import Elsewhere, InlineWorker
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images.imports import making
from warmstart.images.imports.making import Flight
from warmstart.images.query import Obtained, Site, query_by_rules
from warmstart.images.reference import parse
from warmstart.images.store import eviction
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import Charged

TAG = parse("reg.io/a:1")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "store").mkdir()
    with ImageStoreClient.of(Identity("me", os.getuid(), os.getgid()), str(tmp_path / "store")) as store:
        yield image_site.site(tmp_path / "store", tmp_path / "workspace")._replace(store=store)


def flight_of(site: Site) -> Flight:
    flight = making.begin(query_by_rules(TAG, site.rules, site.recipe), site, after(30))
    assert flight is not None
    return flight


def test_others_are_kept_from_importing(site: Site) -> None:
    seen: list[str] = []
    there = (Elsewhere(seen), Elsewhere([], unheld="odd"))
    with making._places_held(flight_of(site._replace(places=lambda: there))) as problem:
        assert (problem, seen) == ("odd", ["held reg.io/a:1"])
    assert seen == ["held reg.io/a:1", "released"]


@pytest.mark.parametrize(("uid", "shown"), [(-1, ["reg.io/a:1 is x.sqsh"]), (7, [])])
def test_images_of_the_policy_are_shown(site: Site, uid: int, shown: list[str]) -> None:
    seen: list[str] = []
    site = site._replace(places=lambda: (Elsewhere(seen),), charged=Charged("u", uid))
    made = Obtained("x", f"{site.store.path}/images/x.sqsh", f"sha256:{image_site.HEX}", 1, "imported", 0.0)
    making._point(flight_of(site), made, 1.0)
    assert seen == shown


@pytest.mark.parametrize("evicted", [["x"], []])
def test_places_forget_what_was_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evicted: list[str]) -> None:
    seen: list[str] = []
    site = image_site.site(tmp_path, tmp_path)._replace(places=lambda: (Elsewhere(seen),))
    flight = flight_of(site)
    monkeypatch.setattr(eviction, "make_room", lambda *_: evicted)
    monkeypatch.setattr(InlineWorker, "run", lambda _self, _deadline, function, *args: function(*args))
    assert making._make_room(flight, 1, site.charged) == evicted
    assert seen == ["forgets"] * len(evicted)

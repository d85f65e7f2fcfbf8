"""Registries that fail: each failure has its class and leaves nothing partial, in a store that refuses root."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from tests.lib.accounts import IMPORT
from tests.lib.image_place import Place, Store, files, leftovers, published_files
from tests.lib.image_site import RULES
from tests.lib.registries import stub
from tests.lib.registry import build_image
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.images.importers.base import (
    ImageForbidden,
    ImageNotFound,
    RegistryAnswerUnusable,
    RegistryUnreachable,
    Report,
    unreported,
)
from warmstart.images.importers.oci import Oci
from warmstart.images.imports import making
from warmstart.images.query import Site
from warmstart.images.reference import Reference, parse
from warmstart.images.scratch import Scratch
from warmstart.images.store import published
from warmstart.images.store.published import RememberedFailure


@pytest.fixture
def site(place: Place, store: Store) -> Iterator[Site]:
    made = place.site(store.path)
    with made.store:
        yield made


@pytest.mark.timed
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("401", ImageForbidden),
        ("403", ImageForbidden),
        ("404", ImageNotFound),
        ("429", RegistryUnreachable),
        ("503", RegistryUnreachable),
        ("slow", RegistryUnreachable),
        ("html", RegistryAnswerUnusable),
        ("cut", RegistryUnreachable),
    ],
)
def test_each_failure_has_its_class(
    place: Place, site: Site, store: Store, how: str, kind: type[WarmstartError]
) -> None:
    with stub(how) as port:
        registry = f"127.0.0.1:{port}"
        importer = partial(Oci, place.identity(IMPORT), (registry,))
        patience = after(3 if kind is RegistryUnreachable else 60)  # what is tried again takes all of it
        with pytest.raises(kind):
            making.obtain(parse(f"{registry}/team/tool:1"), site._replace(importer=importer), patience)
    assert leftovers(store.source) == []
    assert place.left_in_scratch() == []
    assert published_files(store.source) == []
    (failure,) = (json.loads((store.source / name).read_text()) for name in files(store.source))
    counts = published.is_definitive(RememberedFailure(**failure))
    assert counts == (kind in (ImageForbidden, ImageNotFound))


class Interrupted(Oci):
    """An importer whose registry stops answering between the tag and the layers."""

    place: Place

    def import_image(
        self,
        reference: Reference,
        digest: str,
        work: Scratch,
        deadline: Deadline,
        report: Report = unreported,
    ) -> str:
        with self.place.registry.silent():
            return super().import_image(reference, digest, work, deadline, report)


@pytest.mark.timed
def test_a_registry_that_stops_in_mid_import(place: Place, site: Site, store: Store) -> None:
    Interrupted.place = place
    broken = site._replace(importer=partial(Interrupted, place.identity(IMPORT), (place.registry.url,)))
    with pytest.raises(RegistryUnreachable):
        making.obtain(place.image(), broken, after(3))
    assert published_files(store.source) == []
    assert place.left_in_scratch() == []
    assert making.obtain(place.image(), site, after(60)).how == "imported"


def test_a_silent_registry_leaves_the_last_known_image(
    place: Place, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "RESOLVE_KNOWN_S", 1.0)
    old = making.obtain(place.image(), site, after(60))
    expired = site._replace(rules=RULES._replace(tag_ttl=0))
    with place.registry.silent():
        found = making.obtain(place.image(), expired, after(30))
    assert found._replace(reason="") == old._replace(how="stale")
    assert "no answer in time" in found.reason
    assert making.obtain(place.image(), expired, after(30)).how == "reused"


@pytest.mark.timed
def test_a_silent_registry_without_a_last_image_is_an_outage(place: Place, site: Site) -> None:
    with place.registry.silent(), pytest.raises(RegistryUnreachable):
        making.obtain(place.image("team/never:1"), site, after(3))


def test_a_tag_that_moved_is_picked_up_after_its_ttl_and_not_before(place: Place, site: Site) -> None:
    old = place.registry.push(build_image(place.base / "old", {"/v": "1\n"}), "latest", "team/moving:1")
    image = place.image("team/moving:1")
    assert making.obtain(image, site, after(60)).digest == old
    new = place.registry.push(build_image(place.base / "new", {"/v": "2\n"}), "latest", "team/moving:1")
    asked = place.registry.requests("GET", "team/moving/manifests")
    found = making.obtain(image, site, after(60))
    assert (found.digest, found.how) == (old, "reused")
    assert place.registry.requests("GET", "team/moving/manifests") == asked
    found = making.obtain(image, site._replace(rules=RULES._replace(tag_ttl=0)), after(60))
    assert (found.digest, found.how) == (new, "imported")
    assert making.obtain(image, site, after(60)) == found._replace(how="reused")

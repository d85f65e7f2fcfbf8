"""Attacks on the image store, each of which fails. Row 11 has more in test_images.py.

See docs/threats.md, rows 11, 15.

The store is on a file system which refuses root's uid. The test makes other users' changes in the directory behind it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from tests.lib.accounts import ALICE, IMPORT
from tests.lib.image_place import Place, Ready, Store, opened_place, squashfs
from warmstart.host.deadline import after
from warmstart.images.imports import making
from warmstart.images.query import Obtained, Site
from warmstart.images.store import eviction
from warmstart.images.store.layout import Charged

pytestmark = pytest.mark.threat(6)

NAME = "team/popular:1"


@pytest.fixture(scope="module")
def place(capable_host: None) -> Iterator[Place]:
    """Return accounts and a directory for this module, with an image."""
    with opened_place() as made:
        squashfs(made.base / "ready.sqsh", 40_000)
        yield made


@pytest.fixture
def shared(place: Place, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return a file system that refuses all uids but the store owner's, with a directory of that owner."""
    with place.squashed(request.node.name, coherent=True) as made:
        place.own(made.source / "store").chmod(0o755)
        yield made


@pytest.fixture
def site(place: Place, shared: Store) -> Iterator[Site]:
    importer = partial(Ready, place.identity(IMPORT), str(place.base / "ready.sqsh"))
    made = place.site(shared.path / "store", importer=importer)
    with made.store:
        yield made


def is_good(image: Obtained, place: Place, shared: Store) -> bool:
    """Return whether the store has the registry's image and not a planted one."""
    return shared.file(image.path).read_bytes() == (place.base / "ready.sqsh").read_bytes()


@pytest.mark.threat(15)
def test_a_users_quota_is_that_users_matter(place: Place, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (place.base / "ready.sqsh").stat().st_size
    monkeypatch.setattr(eviction, "_space", lambda _: (4 * size, 2 * size))
    monkeypatch.setattr(eviction, "USER_PERCENT", 30)
    alice = site._replace(charged=Charged("ws-alice", place.accounts[ALICE].uid))
    assert making.obtain(place.image("team/a:1"), alice, after(30)).how == "imported"
    with pytest.raises(eviction.ImageQuotaExceeded):
        making.obtain(place.image("team/a:2"), alice, after(30))
    bob = site._replace(charged=Charged("ws-bob", 64202))
    assert making.obtain(place.image("team/a:2"), bob, after(30)).how == "imported"


def test_a_mount_of_an_image_outlives_its_damage(place: Place, shared: Store, site: Site) -> None:
    found = making.obtain(place.image(NAME), site, after(30))
    target = place.base / "mounted"
    target.mkdir()
    subprocess.run(
        ["mount", "-t", "squashfs", "-o", "loop,ro,nosuid,nodev", shared.file(found.path), target], check=True
    )
    try:
        with shared.file(found.path).open("r+b") as stream:
            stream.write(b"x")
        again = making.obtain(place.image(NAME), site, after(30))
        assert (again.how, is_good(again, place, shared)) == ("imported", True)
        assert len(list(target.iterdir())) == 20
        assert (target / "d0" / "file").stat().st_size == 2000
    finally:
        subprocess.run(["umount", target], check=True)

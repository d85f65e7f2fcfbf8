"""Profiles that keep the newest: which bundle replaces which, and that no work is lost silently."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.bundles import OWNER, draft, namespace
from warmstart.store import blocklist, bundles, index, maintenance
from warmstart.store.blocklist import Block
from warmstart.store.index import SMALLER, SUPERSEDED, UNCHANGED, Base
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Entries, File


class Shop:
    """A store in which one file is published again and again."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def where(self, scope: str = "user-1") -> Namespace:
        """Return the namespace."""
        return namespace(self.store, scope)

    def publish(self, content: str, based_on: str, *, user: str = "a", scope: str = "user-1") -> str | None:
        """Publish the file; return the bundle, None where it was left out."""
        fd = os.memfd_create("bundle")
        os.write(fd, content.encode())
        made = draft()
        producer = made.producer._replace(user=user)
        made = made._replace(producer=producer, entries=self.entries(content), based_on=based_on)
        try:
            return bundles.publish_bundle(self.where(scope), fd, made, OWNER).bundle
        finally:
            os.close(fd)

    def entries(self, content: str) -> Entries:
        """Return the entries of a draft for the file with this content."""
        return {"file": {"file.bin": File(len(content), content.encode().hex().ljust(64, "0"), 17)}}

    def taken(self, *scopes: str) -> list[str]:
        """Return the bundle from which a job takes the file."""
        found = bundles.offers(str(self.store), list(scopes or ("user-1",)), "numba", "ns", OWNER)
        return [offer.bundle for offer in found.offers]

    def needless(self, content: str, *based_on: str) -> str:
        """Return why the file need not be published."""
        base = Base(*based_on) if based_on else None
        return index.needless(self.where(), base, self.entries(content), OWNER)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Return an empty store."""
    return Shop(tmp_path)


def test_each_takes_the_place_of_what_it_grew_from(shop: Shop) -> None:
    """Of three jobs in sequence, readers get the file of the last."""
    made = ""
    for content in ("v1", "v1+2", "v1+2+3"):
        made = shop.publish(content, made) or ""
        assert shop.taken() == [made]


def test_who_was_overtaken_replaces_nothing(shop: Shop) -> None:
    """If two jobs began with the same file, the second one's is left out, however large it is."""
    first = shop.publish("v1", "") or ""
    second = shop.publish("v1+2", first)
    assert shop.needless("v1+other+long", "user-1", first) == SUPERSEDED
    assert shop.publish("v1+other+long", first) is None
    assert shop.needless("v0") == SUPERSEDED
    assert shop.publish("v0", "") is None
    assert shop.taken() == [second]


def test_what_is_not_new_or_shrank_is_left_out(shop: Shop) -> None:
    """An unchanged file is left out, and so is a smaller one, which was started anew or is incomplete."""
    first = shop.publish("v1", "") or ""
    assert shop.needless("v1", "user-1", first) == UNCHANGED
    assert shop.needless("v1") == UNCHANGED  # somebody else published just this
    assert shop.needless("v", "user-1", first) == SMALLER
    assert shop.needless("v2", "user-1", first) == ""


def test_what_a_more_trusted_scope_gave_is_no_news_for_the_users_own(shop: Shop) -> None:
    """A file is unchanged if it equals what the job began with, from whatever scope."""
    site = shop.publish("v1", "", scope="site") or ""
    assert shop.needless("v1", "site", site) == UNCHANGED
    assert shop.needless("v1+2", "site", site) == ""
    shop.publish("mine", "")
    assert shop.needless("v1+2", "site", site) == SUPERSEDED
    assert shop.taken("site", "user-1") == [site]


def test_the_bundle_that_it_grew_from_may_be_gone(shop: Shop) -> None:
    """If maintenance removed it while the job ran, the current bundles decide."""
    first = shop.publish("v1", "") or ""
    for path in Path(shop.where().path).glob(f"{first}.*"):
        path.unlink()
    bundles.reindex(shop.where(), OWNER)
    assert shop.publish("v1+2", first) is None
    assert shop.publish("v1+2", "") is not None


def test_a_blocked_users_file_is_passed_over_and_stays_behind(shop: Shop) -> None:
    """Readers take the next bundle; what replaces that sorts before both, even after the block is removed."""
    first = shop.publish("v1", "") or ""
    bad = shop.publish("v1+bad", first, user="mallory")
    blocklist.block(str(shop.store), Block(user="mallory"), OWNER)
    assert shop.taken() == [first]
    third = shop.publish("v1+good", first)
    blocklist.unblock_all(str(shop.store))
    assert shop.taken() == [third]
    assert bad is not None


def test_without_any_lock_readers_agree(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """If two publish at the same time without a lock, all readers get the same one of the two."""
    first = shop.publish("v1", "") or ""
    before = index.read(shop.where().path, OWNER)
    monkeypatch.setattr(index, "update", lambda _fd, _owner: before)
    both = {shop.publish("v1+a", first), shop.publish("v1+b", first)}
    monkeypatch.undo()
    bundles.reindex(shop.where(), OWNER)
    assert None not in both
    assert shop.taken() == [min(str(bundle) for bundle in both)]


def test_maintenance_merges_none_that_was_replaced(shop: Shop) -> None:
    """A compacted bundle would bring an old file back."""
    made = ""
    for number in range(5):
        made = shop.publish("v" * (number + 1), made) or ""
    assert maintenance.mergers(index.read(shop.where().path, OWNER).bundles, 2, 1 << 30) == []

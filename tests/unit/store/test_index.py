"""Which bundle takes the place of which, who still gets the older one, and that nothing stale comes back."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.lib.bundles import OWNER, draft, memory_file, namespace
from warmstart.seed import overlay
from warmstart.seed.overlay import Layer
from warmstart.store import bundles, index, maintenance
from warmstart.store.bundles import Published
from warmstart.store.layout import Namespace, StoreFailed
from warmstart.store.manifest import Base, Entries, File, content_digest

OWN, OTHER, SITE = "user-1-a", "user-2-b", "site"


class Shop:
    """A store in which jobs publish entries of one file; an entry's content is its text."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def where(self, scope: str = OWN) -> Namespace:
        return namespace(self.store, scope)

    def publish(
        self,
        scope: str = OWN,
        *,
        based_on: dict[str, tuple[str, str]] | None = None,
        user: str = "a",
        fresh: bool = False,
        **contents: str,
    ) -> Published:
        """Publish a job's entries; `based_on` has scope and content of what it was seeded with and changed."""
        made = draft()
        bases = {entry: Base(*base[:1], digest(entry, base[1])) for entry, base in (based_on or {}).items()}
        entries: Entries = {entry: files(entry, content) for entry, content in contents.items()}
        producer = made.producer._replace(user=user)
        made = made._replace(producer=producer, entries=entries, based_on=bases, fresh=fresh)
        with memory_file(repr((contents, based_on, os.urandom(4))).encode()) as fd:
            return bundles.publish_bundle(self.where(scope), fd, made, OWNER)

    def seen(self, *scopes: str) -> dict[str, str]:
        """Return entry → content as a job of these scopes is seeded with them."""
        found = bundles.offers(str(self.store), list(scopes or (OWN,)), "numba", "ns", OWNER)
        contents = {}
        manifests = [bundles.read_manifest(self.where(offer.scope), offer.bundle) for offer in found.offers]
        layers = [Layer(each.entries, offer.entries) for each, offer in zip(manifests, found.offers, strict=True)]
        assert overlay.visible(layers).entries == [offer.entries for offer in found.offers]  # none is covered
        for offer, manifest in zip(found.offers, manifests, strict=True):
            assert offer.whole == (manifest.entries.keys() == set(offer.entries))
            for entry in offer.entries:
                assert entry not in contents
                (file,) = manifest.entries[entry].values()
                contents[entry] = bytes.fromhex(file.sha256).rstrip(b"\0").decode()
        return contents

    def known(self, scope: str = OWN) -> list[str]:
        """Return the entries that a job of the scope need not harvest."""
        return bundles.known_entries(self.where(scope), OWNER, "a", 1)

    def remove(self, *names: str | None, scope: str = OWN) -> None:
        maintenance.remove(self.where(scope), OWNER, [name for name in names if name])

    def tidy(self, monkeypatch: pytest.MonkeyPatch, scope: str = OWN) -> list[str]:
        """Remove what nobody needs, as if its grace were over; return the bundles that are left."""
        with monkeypatch.context() as patched:
            patched.setattr(maintenance, "GRACE_SECONDS", -60.0)
            where = self.where(scope)
            maintenance.remove(where, OWNER, maintenance.superseded(where, OWNER, time.time()))
        return [listed.bundle for listed in index.read(where.path, OWNER).bundles]

    def compact(self, scope: str = OWN) -> list[str | None]:
        where = self.where(scope)
        made = []
        for merger in maintenance.plan_compaction(where, OWNER, 2, 1 << 30):
            manifests = {source: bundles.read_manifest(where, source) for source in merger.sources}
            entries = {
                entry: manifests[source].entries[entry] for source, names in merger.entries.items() for entry in names
            }
            producer = manifests[merger.sources[0]].producer
            merged = draft()._replace(
                producer=producer, entries=entries, replaces=merger.sources, supersedes=merger.supersedes
            )
            with memory_file(os.urandom(8)) as fd:
                made.append(bundles.publish_compacted(where, fd, merged, OWNER).bundle)
        return made


def files(entry: str, content: str) -> dict[str, File]:
    """Return the one file of an entry, whose hash tells its content."""
    return {f"{entry}.nbi": File(len(content), content.encode().hex().ljust(64, "0"), 17)}


def digest(entry: str, content: str) -> str:
    return content_digest(files(entry, content))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_changed_entry_takes_the_place_of_what_its_job_was_seeded_with(shop: Shop) -> None:
    shop.publish(f="v1", g="g1")
    for old, new in (("v1", "v2"), ("v2", "v3")):
        made = shop.publish(f=new, based_on={"f": (OWN, old)})
        assert made.superseding == ["f"]
        assert shop.seen() == {"f": new, "g": "g1"}
    assert shop.known() == ["f", "g"]


@pytest.mark.threat(8)
def test_who_was_overtaken_takes_no_ones_place(shop: Shop) -> None:
    shop.publish(f="v1")
    shop.publish(f="v2", based_on={"f": (OWN, "v1")})
    assert shop.publish(f="v2-late", based_on={"f": (OWN, "v1")}).bundle is None
    assert shop.publish(f="cold").bundle is None
    assert shop.seen() == {"f": "v2"}


def test_a_removed_entry_is_retired(shop: Shop) -> None:
    shop.publish(f="v1", g="g1")
    assert shop.publish(based_on={"f": (OWN, "v1")}).superseding == ["f"]
    assert (shop.seen(), shop.known()) == ({"g": "g1"}, ["g"])
    assert shop.publish(based_on={"f": (OWN, "v1")}).bundle is None  # as late as it is
    assert shop.publish(f="v2").bundle
    assert shop.seen() == {"f": "v2", "g": "g1"}


@pytest.mark.threat(8)
def test_a_users_own_scope_supersedes_the_others_for_that_user_alone(shop: Shop) -> None:
    """A version or a removal in a user's scope hides the site's entry from this user, and from nobody else."""
    shop.publish(SITE, f="v1", g="g1", user="s")
    shop.publish(based_on={"f": (SITE, "v1"), "g": (SITE, "g1")}, f="mine")
    assert shop.seen(SITE, OWN) == {"f": "mine"}
    assert shop.seen(SITE, OTHER) == shop.seen(SITE) == {"f": "v1", "g": "g1"}
    (offer,) = bundles.offers(str(shop.store), [SITE, OWN], "numba", "ns", OWNER).offers
    assert offer.scope == OWN


@pytest.mark.threat(8)
def test_a_shared_scope_supersedes_only_its_own(shop: Shop) -> None:
    shop.publish(SITE, f="v1", user="s")
    made = shop.publish("account-x", f="v2", based_on={"f": (SITE, "v1")})
    assert made.superseding == []
    assert shop.seen(SITE, "account-x") == {"f": "v1"}


def test_a_fresh_job_takes_the_place_of_what_readers_get(shop: Shop) -> None:
    shop.publish(f="v1", g="g1")
    assert shop.publish(f="v1", g="g1", fresh=True).bundle is None
    made = shop.publish(f="v2", g="g1", h="h1", fresh=True)
    assert shop.seen() == {"f": "v2", "g": "g1", "h": "h1"}
    assert made.superseding == ["f", "g", "h"]  # g, too: layers can't show it below f and above h


def test_removing_the_newest_leaves_its_entry_cold(shop: Shop) -> None:
    shop.publish(f="v1", g="g1")
    second = shop.publish(f="v2", based_on={"f": (OWN, "v1")}).bundle
    shop.remove(second)
    assert shop.seen() == {"g": "g1"}
    third = shop.publish(f="v3").bundle
    assert shop.seen() == {"f": "v3", "g": "g1"}
    maintenance.quarantine(shop.where(), OWNER, str(third))
    bundles.reindex(shop.where(), OWNER)
    assert shop.seen() == {"g": "g1"}


def test_compaction_keeps_what_readers_get(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.publish(SITE, f="site", user="s")
    shop.publish(e="e1", g="g1", h="h1")
    shop.publish(f="mine", based_on={"f": (SITE, "site"), "g": (OWN, "g1")})
    shop.publish(e="e2", based_on={"e": (OWN, "e1")}, i="i1")
    wanted = {"e": "e2", "f": "mine", "h": "h1", "i": "i1"}
    for more in ("j", "k"):
        (made,) = shop.compact()
        assert made
        assert shop.seen(SITE, OWN) == wanted
        assert shop.tidy(monkeypatch) == [made]
        assert shop.seen(SITE, OWN) == wanted
        assert shop.publish(**dict.fromkeys([more], more)).bundle  # type: ignore[arg-type]
        wanted[more] = more
    shop.publish(e="e3", based_on={"e": (OWN, "e2")})
    assert shop.seen(SITE, OWN) == {**wanted, "e": "e3"}


@pytest.mark.parametrize("damage", [b"", b'{"format": 1', None])
@pytest.mark.parametrize("lost", [b"", None])
def test_nothing_retired_comes_back_without_an_index(shop: Shop, damage: bytes | None, lost: bytes | None) -> None:
    shop.publish(f="v1", g="g1")
    mark = shop.publish(based_on={"f": (OWN, "v1")}).bundle
    folder = Path(shop.where().path)
    manifest = folder / f"{mark}.json"
    whole = manifest.read_bytes()
    for path, content in ((folder / index.NAME, lost), (manifest, damage)):
        path.unlink()
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
    for attempt in (shop.seen, lambda: shop.publish(h="h1"), lambda: bundles.reindex(shop.where(), OWNER)):
        with pytest.raises(StoreFailed, match=f"{mark}.json"):
            attempt()
    assert (folder / index.NAME).is_dir() == (lost is None)
    manifest.rmdir() if damage is None else manifest.unlink()
    manifest.write_bytes(whole)
    assert shop.seen() == {"g": "g1"}

"""Which bundle takes the place of which, who still gets the older one, and that nothing stale comes back."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from tests.lib.bundles import OWNER, draft, namespace
from warmstart.policy.compiled import Maintenance
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
        """Return the namespace."""
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
        fd = os.memfd_create("bundle")
        os.write(fd, repr((contents, based_on, os.urandom(4))).encode())
        made = draft()
        bases = {entry: Base(*base[:1], digest(entry, base[1])) for entry, base in (based_on or {}).items()}
        entries: Entries = {entry: files(entry, content) for entry, content in contents.items()}
        producer = made.producer._replace(user=user)
        made = made._replace(producer=producer, entries=entries, based_on=bases, fresh=fresh)
        try:
            return bundles.publish_bundle(self.where(scope), fd, made, OWNER)
        finally:
            os.close(fd)

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
        """Remove bundles as garbage collection does."""
        maintenance.remove(self.where(scope), OWNER, [name for name in names if name])

    def tidy(self, monkeypatch: pytest.MonkeyPatch, scope: str = OWN) -> list[str]:
        """Remove what nobody needs, as if its grace were over; return the bundles that are left."""
        with monkeypatch.context() as patched:
            patched.setattr(maintenance, "GRACE_SECONDS", -60.0)
            where = self.where(scope)
            maintenance.remove(where, OWNER, maintenance.superseded(where, OWNER, time.time()))
        return [listed.bundle for listed in index.read(where.path, OWNER).bundles]

    def compact(self, scope: str = OWN) -> list[str | None]:
        """Merge what can be merged; return the new bundles."""
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
            fd = os.memfd_create("merged")
            os.write(fd, os.urandom(8))
            made.append(bundles.publish_compacted(where, fd, merged, OWNER).bundle)
            os.close(fd)
        return made


def files(entry: str, content: str) -> dict[str, File]:
    """Return the one file of an entry, whose hash tells its content."""
    return {f"{entry}.nbi": File(len(content), content.encode().hex().ljust(64, "0"), 17)}


def digest(entry: str, content: str) -> str:
    """Return the digest of an entry with this content."""
    return content_digest(files(entry, content))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Return an empty store."""
    return Shop(tmp_path)


def test_a_changed_entry_takes_the_place_of_what_its_job_was_seeded_with(shop: Shop) -> None:
    """Of three jobs in sequence, readers get the version of the last; what it did not change stays as it is."""
    shop.publish(f="v1", g="g1")
    for old, new in (("v1", "v2"), ("v2", "v3")):
        made = shop.publish(f=new, based_on={"f": (OWN, old)})
        assert made.superseding == ["f"]
        assert shop.seen() == {"f": new, "g": "g1"}
    assert shop.known() == ["f", "g"]


@pytest.mark.threat(8)
def test_who_was_overtaken_takes_no_ones_place(shop: Shop) -> None:
    """If two jobs were seeded with the same version, the second one's is left out."""
    shop.publish(f="v1")
    shop.publish(f="v2", based_on={"f": (OWN, "v1")})
    assert shop.publish(f="v2-late", based_on={"f": (OWN, "v1")}).bundle is None
    assert shop.publish(f="cold").bundle is None
    assert shop.seen() == {"f": "v2"}


def test_a_removed_entry_is_retired(shop: Shop) -> None:
    """Nobody is seeded with it; the next job that builds it publishes it."""
    shop.publish(f="v1", g="g1")
    assert shop.publish(based_on={"f": (OWN, "v1")}).superseding == ["f"]
    assert (shop.seen(), shop.known()) == ({"g": "g1"}, ["g"])
    assert shop.publish(based_on={"f": (OWN, "v1")}).bundle is None  # as late as it is
    assert shop.publish(f="v2").bundle
    assert shop.seen() == {"f": "v2", "g": "g1"}


def test_the_bundle_that_superseded_provides_before_those_below_it(shop: Shop) -> None:
    """Offers are in the order of layers: an older bundle on top would cover the entry's files."""
    first = shop.publish(f="v1", g="g1").bundle
    second = shop.publish(f="v2", based_on={"f": (OWN, "v1")}).bundle
    third = shop.publish(g="g2", based_on={"g": (OWN, "g1")}, h="h1").bundle
    found = bundles.offers(str(shop.store), [OWN], "numba", "ns", OWNER).offers
    assert sorted((offer.bundle, offer.entries) for offer in found) == [(second, ["f"]), (third, ["g", "h"])]
    assert first is not None


def test_a_late_version_in_a_bundle_covers_nobody(shop: Shop) -> None:
    """Of two jobs that changed f, the later one also changed g: each provides its part."""
    shop.publish(f="v1", g="g1")
    shop.publish(f="v2", based_on={"f": (OWN, "v1")})
    shop.publish(f="late", g="g2", based_on={"f": (OWN, "v1"), "g": (OWN, "g1")})
    assert shop.seen() == {"f": "v2", "g": "g2"}


@pytest.mark.threat(8)
def test_a_users_own_scope_supersedes_the_others_for_that_user_alone(shop: Shop) -> None:
    """A version or a removal in a user's scope hides the site's entry from this user, and from nobody else."""
    shop.publish(SITE, f="v1", g="g1", user="s")
    shop.publish(based_on={"f": (SITE, "v1"), "g": (SITE, "g1")}, f="mine")
    assert shop.seen(SITE, OWN) == {"f": "mine"}
    assert shop.seen(SITE, OTHER) == shop.seen(SITE) == {"f": "v1", "g": "g1"}
    (offer,) = bundles.offers(str(shop.store), [SITE, OWN], "numba", "ns", OWNER).offers
    assert offer.scope == OWN


def test_what_a_users_bundle_covers_it_provides(shop: Shop) -> None:
    """A bundle of the user's that supersedes lies on top, so what else it holds comes from it, and not from nobody."""
    shop.publish(SITE, f="v1", user="s")
    shop.publish(based_on={"f": (SITE, "v1")}, f="mine", e="mine", g="mine")
    shop.publish(SITE, e="site", h="site", user="s")
    assert shop.seen(SITE, OWN) == {"f": "mine", "e": "mine", "g": "mine", "h": "site"}


@pytest.mark.threat(8)
def test_a_shared_scope_supersedes_only_its_own(shop: Shop) -> None:
    """What a more trusted scope provides comes first for its readers, whatever a job of the account changed."""
    shop.publish(SITE, f="v1", user="s")
    made = shop.publish("account-x", f="v2", based_on={"f": (SITE, "v1")})
    assert made.superseding == []
    assert shop.seen(SITE, "account-x") == {"f": "v1"}


def test_a_fresh_job_takes_the_place_of_what_readers_get(shop: Shop) -> None:
    """The same content publishes nothing."""
    shop.publish(f="v1", g="g1")
    assert shop.publish(f="v1", g="g1", fresh=True).bundle is None
    made = shop.publish(f="v2", g="g1", h="h1", fresh=True)
    assert shop.seen() == {"f": "v2", "g": "g1", "h": "h1"}
    assert made.superseding == ["f", "g", "h"]  # g, too: layers can't show it below f and above h


def test_removing_the_newest_leaves_its_entry_cold(shop: Shop) -> None:
    """Garbage collection and quarantine never bring a stale version back; a job that builds it anew publishes."""
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
    """It drops superseded versions, and hides what it was hiding: at once, after its grace, and compacted again."""
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


def test_what_was_superseded_while_a_merger_was_packed_stays_superseded(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compacted bundle is older than any other, but its entries are as old as those of its sources."""
    shop.publish(f="v1", g="g1")
    shop.publish(h="h1")
    planned = maintenance.plan_compaction(shop.where(), OWNER, 2, 1 << 30)
    shop.publish(f="v2", based_on={"f": (OWN, "v1")})
    monkeypatch.setattr(maintenance, "plan_compaction", lambda *_: planned)
    assert len(shop.compact()) == 1
    monkeypatch.undo()
    assert shop.seen() == {"f": "v2", "g": "g1", "h": "h1"}
    shop.tidy(monkeypatch)
    assert shop.seen() == {"f": "v2", "g": "g1", "h": "h1"}


def test_what_is_superseded_goes_and_so_do_marks_that_hide_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose user edits again and again holds one version, and in the end no trace of removals."""
    shop.publish(f="v0")
    for number in range(5):
        shop.publish(f=f"v{number + 1}", based_on={"f": (OWN, f"v{number}")})
    assert len(shop.tidy(monkeypatch)) == 1
    assert shop.seen() == {"f": "v5"}
    shop.publish(based_on={"f": (OWN, "v5")})
    assert shop.seen() == {}
    while left := shop.tidy(monkeypatch):
        assert len(left) == 1
    assert shop.seen() == {}


def test_a_removal_of_anothers_entry_lasts_as_long_as_the_entry(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark in the user's scope goes when no shared scope has the entry any more."""
    site = shop.publish(SITE, f="v1", user="s").bundle
    shop.publish(based_on={"f": (SITE, "v1")})
    assert len(shop.tidy(monkeypatch)) == 1
    survey = [bundle for scope in (OWN, SITE) for bundle in maintenance.survey(shop.where(scope), OWNER)]
    policy = Maintenance(keep=1, per_user=1)
    assert {expired.bundle.scope for expired in maintenance.expired(survey, policy, time.time() + 1e6)} == {SITE}
    shop.remove(site, scope=SITE)
    assert shop.tidy(monkeypatch) == []


def test_versions_that_cross_are_never_both_seen(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any lock, all readers get the same one of two versions that were published at the same time."""
    shop.publish(f="v1")
    before = index.read(shop.where().path, OWNER)
    monkeypatch.setattr(index, "current", lambda _fd: before)
    both = [shop.publish(f=new, based_on={"f": (OWN, "v1")}) for new in ("v2a", "v2b")]
    monkeypatch.undo()
    bundles.reindex(shop.where(), OWNER)
    assert all(made.bundle for made in both)
    assert shop.seen() == {"f": "v2b"}


@pytest.mark.parametrize("damage", [b"", b'{"format": 1', None])
@pytest.mark.parametrize("lost", [b"", None])
def test_nothing_retired_comes_back_without_an_index(shop: Shop, damage: bytes | None, lost: bytes | None) -> None:
    """Empty, cut short, or no file at all: a manifest that cannot be used leaves the namespace cold, and no index."""
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


def test_an_older_index_or_manifest_supersedes_nothing(shop: Shop) -> None:
    """Both are read without the field."""
    shop.publish(f="v1")
    folder = Path(shop.where().path)
    for path in folder.glob("*.json"):
        path.chmod(0o644)
        path.write_text(path.read_text().replace(',"supersedes":{}', ""))
        assert "supersedes" not in path.read_text()
    assert shop.seen() == {"f": "v1"}
    bundles.reindex(shop.where(), OWNER)
    assert shop.seen() == {"f": "v1"}


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.ESTALE, errno.EIO])
def test_a_store_that_hangs_up_is_a_failure_of_the_store(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A listing by descriptor has a number for a file's name."""
    shop.publish(a="1")
    os.unlink(Path(shop.where().path) / index.NAME)

    def fail(place: int) -> list[str]:
        raise OSError(number, os.strerror(number), place)

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(StoreFailed, match=f"{os.strerror(number)}: {shop.where().path}/$"):
        shop.seen()

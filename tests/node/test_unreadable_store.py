"""Files of the store that cannot be read, with real errors of a file system: whom they stop, and who heals them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from tests.lib import mounts
from tests.lib.command_line import run
from tests.lib.maintenance_site import MaintenanceSite, one
from warmstart.host.deadline import after
from warmstart.store import maintenance, manifest
from warmstart.store.layout import Namespace, StoreFailed
from warmstart.store.maintenance import DAY, Use
from warmstart.store.manifest import Base, content_digest

pytestmark = pytest.mark.usefixtures("capable_host", "busy")

OWN = "user-1-a"
SHARED = "account-x"
INDEX = "index.json"
At = Literal["read", "look"]
EACH = pytest.mark.parametrize("at", ["read", "look"])


class Site(MaintenanceSite):
    """A site, some of whose store cannot be read until the test ends."""

    def __init__(self, base: Path, broken: ExitStack) -> None:
        super().__init__(base)
        self._broken = broken

    def breaks(self, *names: str, scope: str = OWN, at: At = "read") -> None:
        """Let these files of the namespace fail."""
        self._broken.enter_context(mounts.broken(self.base, self.directory(scope), *names, at=at))

    def heals(self) -> None:
        """End all faults; what was written meanwhile is lost."""
        self._broken.close()

    def retire(self, entry: str) -> str:
        """Publish that a job removed an entry that it was seeded with. Return the bundle."""
        (offer,) = (offer for offer in self.offers() if entry in offer.entries)
        path = self.directory() / f"{offer.bundle}.json"
        files = manifest.decode(offer.bundle, path.read_bytes()).entries[entry]
        draft = self.draft({})._replace(based_on={entry: Base(OWN, content_digest(files))})
        fd = self.packed({"nothing": {"nothing": b""}})
        with self.client() as client:
            made = client.publish(self.namespace(), fd, draft, after(20))
        os.close(fd)
        assert made.superseding == [entry]
        return str(made.bundle)


@pytest.fixture
def site(base: Path) -> Iterator[Site]:
    """Yield an installation and an empty store."""
    with ExitStack() as broken:
        yield Site(base, broken)


@EACH
def test_an_index_is_made_of_the_manifests(site: Site, at: At) -> None:
    """Readers miss nothing, and publishers go on."""
    site.publish(one("a"))
    site.publish(one("b"))
    before = site.seen()
    site.breaks(INDEX, at=at)
    assert site.seen() == before
    made = site.publish(one("c"))
    assert site.seen() == {**before, "c": made}


def test_maintenance_replaces_an_index(site: Site) -> None:
    """Afterwards it can be read."""
    site.publish(one("a"))
    site.breaks(INDEX)
    with pytest.raises(OSError, match="Input/output error"):
        (site.directory() / INDEX).read_bytes()
    assert site.command("maintain", "--store") == 0
    assert len(json.loads((site.directory() / INDEX).read_bytes().splitlines()[0])["bundles"]) == 1


@EACH
def test_nothing_retired_comes_back(site: Site, at: At) -> None:
    """The manifest that retired an entry is unreadable, too: the namespace is cold, and its index stays as it is."""
    site.publish({**one("a"), **one("b")})
    mark = site.retire("a")
    assert set(site.seen()) == {"b"}
    (site.directory() / INDEX).unlink()
    site.breaks(f"{mark}.json", at=at)
    with pytest.raises(StoreFailed, match=f"Input/output error: {site.directory()}/{mark}.json"):
        site.seen()
    assert site.command("maintain", "--store") == 1
    assert site.command("cache", "reindex") == 1
    assert not (site.directory() / INDEX).exists()
    site.heals()
    assert set(site.seen()) == {"b"}


def test_a_bundle_that_goes_for_its_damaged_manifest_leaves_its_marks(site: Site) -> None:
    """The index says what it retired."""
    site.publish({**one("a"), **one("b")})
    mark = site.retire("a")
    path = site.directory() / f"{mark}.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:40])
    assert site.command("cache", "verify") == 1
    assert not path.exists()
    assert set(site.seen()) == {"b"}
    assert site.command("cache", "reindex") == 0
    assert set(site.seen()) == {"b"}


@EACH
def test_doctor_finds_it(site: Site, at: At) -> None:
    """It names the file, and says whether jobs are cold."""
    site.publish(one("a"), scope=SHARED)
    broken = f"{site.publish(one('a'))}.json"

    def told() -> list[str]:
        rows = site.json("doctor")["findings"]
        return [f"{row['status']} {row['found']}" for row in rows if row["check"] == "store.indexes"]

    assert told() == ["ok the indexes of 2 namespaces can be read"]
    with mounts.broken(site.base, site.directory(), INDEX, at=at):
        (line,) = told()
        assert line.startswith(f"wrong {site.directory()}/{INDEX}: Input/output error; each job")
    site.breaks(INDEX, broken, at=at)
    (line,) = told()
    assert line.startswith(f"wrong {site.directory()}/{broken}: Input/output error; no job is seeded")


def test_maintenance_of_a_users_namespace_goes_on(site: Site) -> None:
    """Where a shared scope cannot be read, a mark stays that may hide something there."""
    site.publish(one("a"), scope=SHARED)
    first = site.publish(one("a"))
    (path,) = site.directory(SHARED).glob("*Z-*.json")
    site.retire("a")
    site.breaks(INDEX, path.name, scope=SHARED)
    assert site.command("cache", "rm", first) == 0
    assert site.command("cache", "compact", "--scope", OWN) == 0
    site.heals()
    assert site.seen(SHARED, OWN) == {}


def test_a_use_is_recorded_whatever_fails(site: Site) -> None:
    """A bundle that cannot be looked at does not let others expire."""
    broken, used = (site.publish(one(name), scope=scope) for name, scope in (("a", SHARED), ("b", OWN)))
    site.breaks(f"{broken}.sqsh", scope=SHARED, at="look")
    at = time.time() + 10 * DAY
    uses = [Use(scope, "numba", "ns", bundle, at) for scope, bundle in ((SHARED, broken), (OWN, used))]
    with site.client() as client, pytest.raises(StoreFailed, match=f"Input/output error: {site.directory(SHARED)}"):
        client.run(after(20), maintenance.record_uses, uses)
    assert (site.directory() / f"{used}.sqsh").stat().st_mtime == pytest.approx(at)


@EACH
def test_the_other_namespaces_of_the_scope_are_published(site: Site, at: At) -> None:
    """The scope is measured without what cannot be read."""
    mine = site.publish(one("a"))
    site.breaks(INDEX, f"{mine}.json", at=at)
    other = Namespace(str(site.store), OWN, "numba", "other")
    fd = site.packed(one("b"))
    with site.client() as client:
        assert client.publish(other, fd, site.draft(one("b")), after(20), quota=1 << 20).bundle
        (offer,) = client.offers([OWN], "numba", "other", after(20)).offers
    os.close(fd)
    assert offer.entries == ["b"]


def test_a_shared_scope_leaves_the_users_own(site: Site) -> None:
    """What the account published is cold, with the path; the user's own is not. The other way round nothing is sure."""
    site.publish(one("a"), scope=SHARED)
    mine = site.publish(one("b"))
    for scope in (SHARED, OWN):
        (path,) = site.directory(scope).glob("*Z-*.json")
        site.breaks(INDEX, path.name, scope=scope)
        if scope == SHARED:
            with site.client() as client:
                offers = client.offers([SHARED, OWN], "numba", "ns", after(20))
            assert [(offer.scope, offer.bundle) for offer in offers.offers] == [(OWN, mine)]
            ((what, why),) = offers.refused.items()
            assert what == f"{SHARED}/*"
            assert f"Input/output error: {path}" in why
    with pytest.raises(StoreFailed, match=str(site.directory())):
        site.seen(SHARED, OWN)


@pytest.mark.parametrize("command", ["reindex", "compact"])
def test_a_command_goes_on_and_names_each(site: Site, command: str) -> None:
    """Namespaces that cannot be read keep no other from its index."""
    for scope in ("account-a", SHARED):
        broken = site.publish(one("a"), scope=scope)
        site.breaks(INDEX, f"{broken}.json", scope=scope)
    site.publish(one("b"))
    (site.directory() / INDEX).unlink()
    done = run(site.installation, "cache", command)
    assert done.exit_code == 1
    told = [line for line in done.stderr.splitlines() if "Input/output error" in line]
    assert {scope for scope in ("account-a", SHARED, OWN) for line in told if scope in line} == {"account-a", SHARED}
    assert (site.directory() / INDEX).exists()

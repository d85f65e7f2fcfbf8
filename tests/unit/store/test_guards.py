"""A guarded scope is never read as if nobody guarded it: its guard names what is taken; without it, nothing is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.bundles import draft, namespace, publish
from tests.support.policy_site import defaults
from warmstart.errors import UserError
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.paths import NodePaths
from warmstart.policy import compiled
from warmstart.policy.compiled import Policy
from warmstart.seed.node_cache import fetch_wanted
from warmstart.seed.wanted import Wanted
from warmstart.store import index, listing, parts
from warmstart.store.bundles import BundleGone, Offer, ScopeGuarded
from warmstart.store.client import StoreClient
from warmstart.store.guards import GuardMissing, NotBorneOut
from warmstart.store.layout import Namespace
from warmstart.store.listing import LISTING, Listing

pytestmark = pytest.mark.threat(52)

USER = "user-1"
WING = "a-wing"


class StillNamed(UserError):
    """The guard names a bundle that is about to be removed."""

    code = "still-named"
    template = "{bundle} is named"
    hint = ""


class Guard:
    """A guard that names one listing."""

    sha256 = ""

    def listing(self, where: Namespace, deadline: Deadline) -> tuple[str, str]:
        """Name it, for one namespace."""
        assert not deadline.expired()
        return (self.sha256, "a remark") if (where.scope, where.name) == ("site", "ns") else ("", "")

    def require_unnamed(self, where: Namespace, bundle: str, deadline: Deadline) -> None:
        """Refuse."""
        assert not deadline.expired()
        raise StillNamed(bundle=f"{where.scope}/{bundle}")


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """Return a policy in which a wing that is not here guards the site's scope."""
    me = Identity("me", os.getuid(), os.getgid())
    bare = defaults()
    paths = bare.paths._replace(store=str(tmp_path / "store"))
    os.mkdir(paths.store)
    return bare._replace(store_user=me, paths=paths, guards={"site": WING})


@pytest.fixture
def store(policy: Policy, tmp_path: Path) -> Iterator[StoreClient]:
    """Return a client whose store has two bundles in the site's scope, and one in a user's."""
    top = Path(policy.paths.store)
    for entry, scope in (("good", "site"), ("evil", "site"), ("own", USER)):
        publish(top, entry, scope=scope, content=entry.encode())
    with StoreClient.of(policy, NodePaths(str(tmp_path / "node"), ""), "n1-test") as client:
        yield client


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch, policy: Policy) -> Guard:
    """Have the wing here."""
    module = ModuleType(f"warmstart.wings.{WING}.guard")
    made = Guard()
    module.guard = lambda given, *_: made if given == policy else None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, f"warmstart.wings.{WING}", ModuleType(f"warmstart.wings.{WING}"))
    return made


def name(guard: Guard, store: StoreClient, entry: str) -> None:
    """Have the guard name one bundle of the site."""
    where = namespace(Path(store.path), "site")
    (row,) = (row for row in index.read(where.path, "").bundles if entry in row.entries)
    sha256 = index.sha256_of((Path(where.path) / f"{row.bundle}.json").read_bytes())
    text = listing.encoded(Listing([row], {row.bundle: sha256})).encode()
    guard.sha256 = index.sha256_of(text)
    (Path(where.path) / f"{guard.sha256}{LISTING}").write_bytes(text)


def offered(store: StoreClient) -> tuple[list[str], dict[str, str]]:
    """Return the entries that a job of the user is offered, and what is refused."""
    offers = store.offers(["site", USER], "numba", "ns", after(20))
    return sorted(entry for offer in offers.offers for entry in offer.entries), offers.refused


def unguarded(store: StoreClient) -> list[Offer]:
    """Return what the site's scope would offer if nobody guarded it."""
    with StoreClient(store.worker.identity, store.path, "") as client:
        return client.offers(["site"], "numba", "ns", after(20)).offers


def test_readers_take_what_the_guard_names(store: StoreClient, guard: Guard) -> None:
    """Also of a namespace of which it names none, and of what another node proposes."""
    name(guard, store, "good")
    assert offered(store) == (["good", "own"], {"site/*": "a remark"})
    good, evil = unguarded(store)
    (borne,) = store.borne_out("numba", "ns", [good], after(20))
    assert (borne.bundle, len(borne.manifest)) == (good.bundle, 64)
    with pytest.raises(NotBorneOut):
        store.borne_out("numba", "ns", [evil], after(20))
    guard.sha256 = ""
    assert offered(store)[0] == ["own"]


def test_a_bundle_with_another_manifest_is_not_fetched(store: StoreClient, guard: Guard, tmp_path: Path) -> None:
    """The listing says which one it has."""
    name(guard, store, "good")
    (offer,) = store.offers(["site"], "numba", "ns", after(20)).offers
    where = namespace(Path(store.path), "site")
    assert store.fetch(where, offer, after(20), into=empty(tmp_path))
    path = Path(where.path) / f"{offer.bundle}.json"
    text = json.loads(path.read_text())
    path.chmod(0o644)
    path.write_text(json.dumps(text, indent=1))
    with pytest.raises(Exception, match="not the manifest that the listing names"):
        store.fetch(where, offer, after(20), into=empty(tmp_path))


def empty(directory: Path) -> int:
    """Return a descriptor of a new file."""
    return os.open(directory, os.O_RDWR | os.O_TMPFILE)


def test_without_its_wing_nothing_is_taken_from_a_scope(store: StoreClient, tmp_path: Path) -> None:
    """A policy was compiled, and then the wing was removed: the user's own scope is read as ever."""
    entries, refused = offered(store)
    assert (entries, f"guarded by the wing {WING}" in refused["site/*"]) == (["own"], True)
    for offer in unguarded(store):
        with pytest.raises(NotBorneOut):
            store.borne_out("numba", "ns", [offer], after(20))
        wanted = Wanted(offer.sha256, offer.size, "site", "numba", "ns", offer.bundle, draft().producer)  # type: ignore[arg-type]
        copies = tmp_path / "copies"
        copies.mkdir(exist_ok=True)
        with pytest.raises(BundleGone):
            fetch_wanted(str(copies), wanted, store=store, rate=0, deadline=after(20))
        with pytest.raises(GuardMissing):
            store.require_unnamed(namespace(Path(store.path), "site"), offer.bundle, after(20))


@pytest.mark.parametrize("is_here", [True, False])
def test_nodes_publish_nothing_into_a_guarded_scope(
    store: StoreClient, request: pytest.FixtureRequest, is_here: bool
) -> None:
    """Whether its wing is here or not; a scope that nobody guards is as ever."""
    if is_here:
        request.getfixturevalue("guard")
    site, fd = namespace(Path(store.path), "site"), os.memfd_create("bundle")
    run = parts.RunParts(store.path, "1000.c.7.0")
    for act in (
        lambda: store.publish(site, fd, draft("x"), after(20)),
        lambda: store.publish_compacted(site, fd, draft("x"), after(20)),
        lambda: store.hand_in(run, site, fd, draft("x"), "n[1-2]", after(20)),
    ):
        with pytest.raises(ScopeGuarded):
            act()
    assert store.publish(site._replace(scope=USER), fd, draft("x"), after(20)).bundle
    store.require_unnamed(site._replace(scope=USER), "b", after(20))
    os.close(fd)


def test_a_guard_may_keep_what_it_names(store: StoreClient, guard: Guard) -> None:
    """Its own error says why."""
    assert guard.sha256 == ""
    with pytest.raises(StillNamed, match="site/b is named"):
        store.require_unnamed(namespace(Path(store.path), "site"), "b", after(20))


def test_a_policy_without_guards_asks_nobody(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And loads nothing for that."""
    monkeypatch.delitem(sys.modules, "warmstart.store.guards")
    with StoreClient.of(policy._replace(guards={}), NodePaths(str(tmp_path), ""), "") as client:
        assert client.guards is None
    assert "warmstart.store.guards" not in sys.modules


def test_a_compiled_policy_says_who_guards_what(policy: Policy, tmp_path: Path) -> None:
    """One that does not, of another release or a damaged one, is none: hooks compile the site's files."""
    path = tmp_path / "policy.json"
    path.write_bytes(compiled.encode(policy))
    path.chmod(0o600)
    assert compiled.read(str(path)) == policy
    whole = json.loads(path.read_text())
    at = 1 + Policy._fields.index("guards")
    fields = whole["policy"][""]
    assert fields[at] == {"site": WING}
    for changed in (fields[:at], fields[:at] + fields[at + 1 :], [*fields[:at], ["site"], *fields[at + 1 :]]):
        path.write_text(json.dumps({**whole, "policy": {"": changed}}))
        read = compiled.read(str(path))
        assert read is None, read

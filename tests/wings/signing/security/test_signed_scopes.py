"""Root on one node publishes into a signed scope in every way it can: no other node is seeded with any of it.

The attacker is the store's owner, as root on a node can be. Real bundles, real keys, each node with a state of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.bundles import ASKER
from tests.support.maintenance_site import MaintenanceSite, one
from tests.support.runs import a_record
from tests.wings.signing.values import need_ssh_keygen
from warmstart.host.deadline import after
from warmstart.paths import NodePaths
from warmstart.policy.compiled import Policy
from warmstart.policy.current import current_policy
from warmstart.seed import node_cache
from warmstart.seed.together import ProposedProfile, Together
from warmstart.store import bundles, index, listing
from warmstart.store.bundles import Offer, Offers
from warmstart.store.client import StoreClient
from warmstart.store.guards import NotBorneOut
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Draft, File, ManifestUnreadable, Producer
from warmstart.store.meeting import Meeting
from warmstart.wings.signing import stored

pytestmark = [pytest.mark.usefixtures("capable_host"), pytest.mark.threat(52)]

GOOD, EVIL = b"what the site promoted", b"what root on a node planted"
SCOPE = "site"


class Site(MaintenanceSite):
    """A site whose scope `site` is signed, with a key that no node has."""

    def __init__(self, base: Path) -> None:
        """Make two keys; the policy has the public half of the first."""
        self.keys = base / "keys"
        self.keys.mkdir()
        for name in ("first", "second"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{self.keys}/{name}"], check=True)
        super().__init__(base, more=self.trusting("first"))

    def trusting(self, *names: str) -> str:
        """Return the part of a policy that believes these keys."""
        keys = ", ".join(f'"{(self.keys / f"{name}.pub").read_text().strip()}"' for name in names)
        return f"signing: {{scopes: [site], keys: [{keys}]}}"

    def trust(self, *names: str) -> None:
        """Believe these keys from now on."""
        MaintenanceSite.__init__(self, self.base, more=self.trusting(*names))

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return current_policy(self.installation).policy

    def promote(self, *entries: str, data: bytes = GOOD, key: str = "first") -> str:
        """Promote a bundle with entries of this content; return its id in the site's scope."""
        made = {entry: files for name in entries for entry, files in one(name, data).items()}
        source = self.publish(made, user="a")
        answer = self.json("signing", "promote", source, "--to", SCOPE, "--key", f"{self.keys}/{key}")
        return str(answer["bundle"])

    def sign(self, *options: str, key: str = "first") -> int:
        """Sign the site's list anew; return the exit status."""
        return self.command("signing", "sign", SCOPE, "--key", f"{self.keys}/{key}", *options)

    @property
    def list(self) -> Path:
        """The site's signed list."""
        return self.store / "artifacts" / SCOPE / stored.NAME

    def node(self, name: str) -> Node:
        """Return a node."""
        return Node(self, name)


class Node:
    """A node of the site, with what it remembers."""

    def __init__(self, site: Site, name: str) -> None:
        """Make its directories."""
        self.site = site
        self.paths = NodePaths(str(site.base / f"state-{name}" / name), "/nowhere")
        os.makedirs(self.paths.root)

    def offers(self, *scopes: str) -> Offers:
        """Return what a job on this node is offered."""
        with StoreClient.of(self.site.policy, self.paths, "n2-test") as client:
            return client.offers([*(scopes or (SCOPE,))], "numba", "ns", after(20))

    def seeded(self, *scopes: str) -> dict[str, bytes]:
        """Return the content of each entry that a job on this node is seeded with."""
        found: dict[str, bytes] = {}
        with StoreClient.of(self.site.policy, self.paths, "n2-test") as client:
            for offer in client.offers([*(scopes or (SCOPE,))], "numba", "ns", after(20)).offers:
                where = self.site.namespace(offer.scope)
                copy = node_cache.local_copy(
                    self.paths.bundles, where, offer, ASKER, store=client, most_bytes=1 << 30, deadline=after(20)
                )
                for entry in offer.entries:
                    (path,) = copy.files()[entry]
                    out = subprocess.run(["unsquashfs", "-cat", copy.path, path], check=True, capture_output=True)
                    found[entry] = out.stdout
        return found

    def problem(self) -> str:
        """Return what this node says of the scope."""
        return self.offers().refused.get(f"{SCOPE}/*", "")


@pytest.fixture
def site(base: Path) -> Site:
    """Return a site."""
    need_ssh_keygen()
    return Site(base)


def test_what_is_promoted_is_seeded_from_its_signed_list(site: Site) -> None:
    """The first list and the next ones; without a list nothing; a warm node starts no child to find that out."""
    node = site.node("n2")
    assert (node.seeded(), node.problem()) == ({}, "there is no signed list")
    site.promote("e")
    assert node.seeded() == {"e": GOOD}
    site.promote("f", "e", data=b"other")
    assert node.seeded() == {"e": GOOD, "f": b"other"}
    with mock.patch("warmstart.host.process.run", side_effect=AssertionError("a child")):
        assert node.seeded() == {"e": GOOD, "f": b"other"}
    assert (node.problem(), site.list.stat().st_mode & 0o777) == ("", 0o444)
    assert [event["into"] for event in site.events("entry.promoted")] == [SCOPE, SCOPE]


def publish_tree(site: Site, data: bytes, facts: dict[str, str], *, scope: str = "user-1-a") -> str:
    """Publish the packed copy of a tree, as a node does; return its id."""
    fd = os.memfd_create("tree")
    os.write(fd, data)
    draft = Draft(Producer(7, "sw", 5, "n1", "c"), facts, {"tree": {"tree": File(1, "ab" * 32, 0)}})
    with site.client() as client:
        made = client.publish(Namespace(str(site.store), scope, "whole-things", "ns"), fd, draft, after(20))
    os.close(fd)
    return str(made.bundle)


@pytest.mark.threat(54)
def test_the_copy_of_a_tree_for_many_is_promoted_as_bundles_are(site: Site) -> None:
    """Byte for byte. What a node puts beside it is not seen; a user's own copy, which may lack files, stays theirs."""
    to_site = ("--to", SCOPE, "--key", f"{site.keys}/first")
    assert site.command("signing", "promote", publish_tree(site, b"own", {"path": "/t"}), *to_site) == 2
    source = publish_tree(site, GOOD, {"path": "/t", "owners": "5"}, scope="user-2-b")
    publish_tree(site, EVIL, {"path": "/t", "owners": "5"}, scope=SCOPE)
    node = site.node("n2")
    with StoreClient.of(site.policy, node.paths, "n2-test") as client:
        assert client.offers([SCOPE], "whole-things", "ns", after(20)).offers == []
    promoted = site.json("signing", "promote", source, *to_site)["bundle"]
    with StoreClient.of(site.policy, node.paths, "n2-test") as client:
        where = Namespace(str(site.store), SCOPE, "whole-things", "ns")
        (offer,) = client.offers([SCOPE, "user-2-b"], "whole-things", "ns", after(20)).offers
        assert (offer.scope, offer.bundle, len(offer.manifest)) == (SCOPE, promoted, 64)
        copy = node_cache.local_copy(
            node.paths.bundles, where, offer, ASKER, store=client, most_bytes=1 << 30, deadline=after(20)
        )
    assert Path(copy.path).read_bytes() == GOOD


def plant_bundle(site: Site) -> None:
    """Publish, as a publisher of old did."""
    site.publish(one("e", EVIL), scope=SCOPE)
    site.publish(one("planted", EVIL), scope=SCOPE)


def plant_older_bundle(site: Site) -> None:
    """With the clock set back: in a scope without a list the oldest bundle provides an entry."""
    (good,) = (path.stem for path in site.directory(SCOPE).glob("*Z-*.sqsh"))
    fd = site.packed(one("e", EVIL))
    with site.client() as client:
        client.publish_compacted(
            site.namespace(SCOPE), fd, site.draft(one("e", EVIL))._replace(replaces=[good]), after(20)
        )
    os.close(fd)


def plant_index(site: Site) -> None:
    """Name the planted bundle in the index, as the only one."""
    plant_bundle(site)
    path = site.directory(SCOPE) / index.NAME
    head, *names = map(json.loads, path.read_text().splitlines())
    head["bundles"] = head["bundles"][-2:]
    overwrite(path, "\n".join(map(json.dumps, (head, *names[-2:]))).encode())


def swap_bytes(site: Site) -> None:
    """Put other bytes under the promoted bundle's name, with a manifest and an index that say so."""
    (good,) = (path for path in site.directory(SCOPE).glob("*Z-*.sqsh"))
    site.publish(one("e", EVIL), scope="user-2-b")
    (evil,) = (path for path in site.directory("user-2-b").glob("*Z-*.sqsh"))
    overwrite(good, evil.read_bytes())
    text = json.loads(evil.with_suffix(".json").read_text())
    overwrite(good.with_suffix(".json"), json.dumps({**text, "bundle": good.stem, "scope": SCOPE}).encode())
    (site.directory(SCOPE) / index.NAME).unlink()


def manifest_of_an_older_bundle(site: Site) -> None:
    """Give the promoted bundle the manifest that the user's bundle has: the same bytes, other names and times."""
    (good,) = (path for path in site.directory(SCOPE).glob("*Z-*.json"))
    text = json.loads(good.read_text())
    (entry,) = text["entries"].values()
    for file in entry.values():
        file[2] = 1
    overwrite(good, json.dumps(text).encode())


def rows_of(site: Site) -> list[dict[str, Any]]:
    """Return the rows of the scope's index with their entries, as a listing has them."""
    head, *names = map(json.loads, (site.directory(SCOPE) / index.NAME).read_text().splitlines())
    return [{**row, "entries": entries} for row, entries in zip(head["bundles"], names, strict=True)]


def rewrite_listing(site: Site) -> None:
    """Add the planted bundle to the listing that the list names."""
    plant_bundle(site)
    (path,) = site.directory(SCOPE).glob("*.listing")
    text = json.loads(path.read_text())
    rows = rows_of(site)
    text["bundles"] = rows
    text["manifests"] = {row["bundle"]: "00" * 32 for row in rows}
    overwrite(path, json.dumps(text).encode())


def signature_of_another_list(site: Site) -> None:
    """Name a listing of one's own under the signature of the true list."""
    planted = listing_with_planted(site)
    envelope = json.loads(site.list.read_text())
    text = json.loads(envelope["text"])
    text["namespaces"]["numba/ns"] = planted
    text["serial"] += 1
    overwrite(site.list, json.dumps({**envelope, "text": json.dumps(text)}).encode())


def own_key(site: Site) -> None:
    """Sign with a key that the policy does not have."""
    sign_as_attacker(site, "second", "warmstart")


def other_purpose(site: Site) -> None:
    """Use a signature that the site's key made for something else."""
    sign_as_attacker(site, "first", "file")


def other_scope(site: Site) -> None:
    """Use a list that was signed for an account's scope."""
    sign_as_attacker(site, "first", "warmstart", scope="account-x")


def other_store(site: Site) -> None:
    """Use a list that was signed for another store, of a test cluster."""
    sign_as_attacker(site, "first", "warmstart", store="ff" * 16)


def unsigned_list(site: Site) -> None:
    """Leave the signature away."""
    envelope = json.loads(site.list.read_text())
    overwrite(site.list, json.dumps({**envelope, "signature": ""}).encode())


def nonsense(site: Site) -> None:
    """Write anything."""
    overwrite(site.list, b"\xff" * 100)


def listing_with_planted(site: Site) -> str:
    """Store a listing that names a planted bundle; return its hash."""
    plant_bundle(site)
    rows = [index.listed_row(row) for row in rows_of(site)]
    hashes = {row.bundle: index.sha256_of((site.directory(SCOPE) / f"{row.bundle}.json").read_bytes()) for row in rows}
    return stored.write_listing(site.namespace(SCOPE), "n1-test", listing.encoded(listing.Listing(rows, hashes)))


def sign_as_attacker(site: Site, key: str, purpose: str, **changes: str) -> None:
    """Replace the list by one with a planted bundle, signed so."""
    text = json.loads(json.loads(site.list.read_text())["text"])
    text["namespaces"]["numba/ns"] = listing_with_planted(site)
    text = json.dumps({**text, "serial": text["serial"] + 1, **changes})
    argv = ["ssh-keygen", "-Y", "sign", "-q", "-n", purpose, "-f", f"{site.keys}/{key}"]
    done = subprocess.run(argv, input=text.encode(), capture_output=True, check=True)
    overwrite(site.list, json.dumps({"text": text, "signature": done.stdout.decode()}).encode())


def overwrite(path: Path, data: bytes) -> None:
    """Replace a file of the store."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


ATTACKS: list[Callable[[Site], None]] = [
    plant_bundle,
    plant_older_bundle,
    plant_index,
    swap_bytes,
    manifest_of_an_older_bundle,
    rewrite_listing,
    signature_of_another_list,
    own_key,
    other_purpose,
    other_scope,
    other_store,
    unsigned_list,
    nonsense,
]


@pytest.fixture(scope="module")
def attacked(capable_host: None) -> Iterator[Site]:
    """Return a site with one promoted bundle, which all attacks share, and a copy of its store beside it."""
    need_ssh_keygen()
    with tempfile.TemporaryDirectory(prefix="warmstart-test-", dir="/var/tmp") as made:
        base = Path(made)
        base.chmod(0o755)
        site = Site(base)
        site.promote("e")
        subprocess.run(["cp", "-a", site.store, base / "kept"], check=True)
        yield site


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_that_a_node_writes_is_seeded(attacked: Site, attack: Callable[[Site], None]) -> None:
    """It is refused, or not looked at, by a node that has seen the site's list, and by one that has seen nothing.

    What was promoted may be gone for both: who can write the store can remove it.
    """
    site = attacked
    shutil.rmtree(site.store)
    subprocess.run(["cp", "-a", site.base / "kept", site.store], check=True)
    known = json.loads(json.loads(site.list.read_text())["text"])["store"]
    has_seen, is_new = site.node(f"{attack.__name__}-seen"), site.node(f"{attack.__name__}-new")
    for node in (has_seen, is_new):
        (Path(node.paths.shared) / "store-id").write_text(known)  # as maintenance of the node has
    assert has_seen.seeded() == {"e": GOOD}
    attack(site)
    for node in (has_seen, is_new):
        with suppress(bundles.BundleDamaged, ManifestUnreadable):  # not what was signed: the profile starts cold
            assert node.seeded() in ({}, {"e": GOOD})


def test_the_attacks_would_work_without_a_signed_list(site: Site) -> None:
    """What is planted is seeded where the policy does not ask for a signature: the attacks are real."""
    site.promote("e")
    plant_older_bundle(site)
    plant_bundle(site)
    MaintenanceSite.__init__(site, site.base)
    assert site.node("n2").seeded() == {"e": EVIL, "planted": EVIL}


def test_a_revoked_bundle_does_not_come_back(site: Site) -> None:
    """By the list that named it, which root on a node has kept. A node that has seen the next one refuses it."""
    bundle = site.promote("e")
    site.promote("f")
    kept = site.list.read_bytes()
    node = site.node("n2")
    assert node.seeded() == {"e": GOOD, "f": GOOD}
    assert site.sign("--without", bundle) == 0
    assert node.seeded() == {"f": GOOD}
    overwrite(site.list, kept)
    assert node.seeded() == {"f": GOOD}
    assert "is older than the one with" in node.problem()
    assert "stays in use" in node.problem()
    (row,) = (row for row in site.json("doctor")["findings"] if row["check"] == "store.signed")
    assert (row["status"], "stays in use" in row["found"]) == ("wrong", True)
    (event,) = site.events("list.signed")
    assert event["without"] == [bundle]
    assert site.sign("--without", bundle) == 2


def test_removing_from_the_store_is_refused_while_the_list_names_it(site: Site) -> None:
    """Nodes with a copy would go on with it. What the list does not name may go."""
    bundle = site.promote("e")
    assert site.command("cache", "rm", bundle) == 2
    planted = site.publish(one("planted", EVIL), scope=SCOPE)
    assert site.command("cache", "rm", planted) == 0


@pytest.mark.parametrize(("offset", "said"), [(91 * 86400, "has expired"), (-7200, "by this host's clock")])
def test_time_does_not_help(site: Site, offset: int, said: str) -> None:
    """An expired list, and one from the future: the clock is wrong. Signing again mends it."""
    site.promote("e")
    node = site.node("n2")
    assert node.seeded() == {"e": GOOD}
    with mock.patch("warmstart.wings.signing.lists.time.time", return_value=time.time() + offset):
        assert node.seeded() == {}
        assert said in node.problem()
    assert node.seeded() == {"e": GOOD}


def test_a_key_is_replaced_by_another(site: Site) -> None:
    """While both hold, either list counts. With the old key gone, what it signed counts no more, remembered or not."""
    site.promote("e")
    node = site.node("n2")
    assert node.seeded() == {"e": GOOD}
    site.trust("first", "second")
    assert node.seeded() == {"e": GOOD}
    old = site.list.read_bytes()
    assert site.sign(key="second") == 0
    site.trust("second")
    assert node.seeded() == {"e": GOOD}
    assert site.sign(key="first") == 2
    overwrite(site.list, old)
    assert node.seeded() == {"e": GOOD}
    assert site.node("n3").seeded() == {}


def test_a_key_is_lost(site: Site) -> None:
    """The host that has signed still knows what it signed, and signs it with a new key."""
    site.promote("e")
    node = site.node("n2")
    assert node.seeded() == {"e": GOOD}
    site.trust("second")
    assert node.seeded() == {}
    assert site.sign(key="second") == 0
    assert node.seeded() == {"e": GOOD}
    shutil.rmtree(f"{site.installation.var}/signed")
    site.trust("first")
    assert site.sign() == 2  # which of the two would be right, this host cannot know


def test_what_lies_in_the_scope_is_not_signed_by_the_way(site: Site) -> None:
    """Nor does it keep an entry from being promoted."""
    site.promote("e")
    site.publish(one("f", EVIL), scope=SCOPE)
    site.promote("f")
    assert site.sign() == 0
    assert site.node("n2").seeded() == {"e": GOOD, "f": GOOD}


def test_nodes_and_maintenance_publish_nothing_there(site: Site) -> None:
    """Neither a harvest of a job that began before, nor compaction; garbage collection removes nothing."""
    for name in "ab":
        site.promote(name)
    with StoreClient.of(site.policy, site.installation.node("n1"), "n1-test") as client:
        fd = site.packed(one("x"))
        with pytest.raises(bundles.PublishBlocked) as refused:
            client.publish(site.namespace(SCOPE), fd, site.draft(one("x")), after(20))
        assert refused.value.code == "scope-guarded"
        os.close(fd)
    assert site.json("cache", "compact")["compacted"] == 1  # of the user's own
    with mock.patch("warmstart.store.maintenance.time.time", return_value=time.time() + 400 * 86400):
        site.json("maintain", "--store")
    assert site.node("n2").seeded() == dict.fromkeys("ab", GOOD)


def test_the_same_bytes_with_other_names_do_not_stand_in(site: Site) -> None:
    """A copy that came to the node from a scope in which anybody publishes is not the one that was signed."""
    site.promote("e")
    (good,) = site.directory(SCOPE).glob("*Z-*.sqsh")
    text = json.loads(good.with_suffix(".json").read_text())
    fd = os.open(good, os.O_RDONLY)
    draft = site.draft(one("e"))
    (files,) = text["entries"].values()
    (file,) = files.values()
    draft.entries["e"] = {"e.nbi": draft.entries["e"]["e.nbi"]._replace(size=file[0], sha256=file[1], mtime_ns=1)}
    with site.client() as client:
        client.publish(site.namespace("user-2-b"), fd, draft, after(20))
    os.close(fd)
    node = site.node("n2")
    assert node.seeded("user-2-b") == {"e": GOOD}
    assert node.seeded() == {"e": GOOD}
    (offer,) = node.offers().offers
    (path,) = node_cache.entries_of(node.paths.bundles, offer.sha256)["e"].values()
    assert path.mtime_ns == file[2] != 1


def test_a_head_node_proposes_only_what_is_signed(site: Site) -> None:
    """Any node can write what a job's nodes agree on. Each of them compares it with the list."""
    site.promote("e")
    site.publish(one("planted", EVIL), scope=SCOPE)
    node = site.node("n2")
    (good,) = node.offers().offers
    (evil,) = (offer for offer in site.offers(SCOPE) if offer.bundle != good.bundle)

    def proposed(number: int, offer: Offer) -> list[Offer]:
        meeting = Meeting(f"c.{number}.0", "caches", "n[1-2]")
        head = a_record(read_scopes=[SCOPE], head=True)
        planted = {"numba": ProposedProfile("ns", {}, [offer])}
        with site.client() as attacker:
            Together(attacker, head, meeting, 5).proposal(planted, after(20))
        with StoreClient.of(site.policy, node.paths, "n2-test") as client:
            seen = Together(client, head._replace(node="n2", head=False), meeting, 5).proposal({}, after(20))
            return client.borne_out("numba", "ns", seen["numba"].offers, after(20))

    assert proposed(1, good._replace(entries=[])) == [good._replace(entries=[])]
    changed = [evil, good._replace(sha256=evil.sha256), good._replace(entries=["f"], whole=False)]
    for number, offer in enumerate(changed, 2):
        with pytest.raises(NotBorneOut):
            proposed(number, offer)

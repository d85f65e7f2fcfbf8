"""Trees are packed: what becomes of each, and who is told."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.lib.node import NODE, SCOPE, Node
from tests.lib.wings.trees.asked import ask, offer_trees, packs
from tests.lib.wings.trees.values import offering
from warmstart.errand import Errands
from warmstart.host.deadline import Deadline
from warmstart.policy.compiled import User
from warmstart.policy.shared import SharedPath
from warmstart.wings.trees import current, place, requests
from warmstart.wings.trees.offered import directory
from warmstart.wings.trees.requests import TreeRequest


@pytest.fixture
def site(node: Node) -> Node:
    """Return an installation with a node that hooks have used."""
    os.makedirs(node.paths.state, mode=0o700)
    return node


@pytest.fixture
def tree(site: Node, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a tree packed that a job of this account has asked for."""
    path = offer_trees(site, monkeypatch, most_files=3)
    ask(site, path)
    return path


def test_a_tree_is_packed_once(site: Node, tree: Path) -> None:
    """Its copy has the tree below a directory that only its user enters; nothing stays, of a killed attempt either."""
    Path(directory(site.paths), "stage", "tree").mkdir(parents=True)
    Path(directory(site.paths), "packed.sqsh").write_text("half")
    assert packs(site) == 0
    (packed,) = site.events("tree.packed")
    assert (packed["tree"], packed["files"], packed["bytes"], packed["left_out"]) == (str(tree), 3, 1, 0)
    assert os.listdir(directory(site.paths)) == []
    assert requests.waiting(site.paths) == []
    (bundle,) = site.store.rglob("*.sqsh")
    listed = subprocess.run(["/usr/bin/unsquashfs", "-lln", bundle], check=True, capture_output=True, text=True).stdout
    found = {line.rpartition(" ")[2]: line.split()[:2] for line in listed.splitlines() if "squashfs-root" in line}
    owner = f"{os.getuid()}/{os.getgid()}"
    assert found["squashfs-root"] == ["drwx------", owner]
    assert found["squashfs-root/tree/lib/empty.py"][1] == owner
    ask(site, tree, job=8)
    assert packs(site) == 0
    assert len(site.events("tree.packed")) == 1
    assert requests.waiting(site.paths) == []


@pytest.mark.threat(50)
def test_what_cannot_be_packed_waits(site: Node, tree: Path) -> None:
    """A tree that is too large, or that changes meanwhile, leaves nothing but the request for a later attempt."""
    (tree / "more").write_text("")
    assert (packs(site), packs(site)) == (0, 0)
    (failed,) = site.events("tree.pack-failed")
    assert (failed["error"]["code"], failed["attempt"]) == ("tree-too-large", 1)
    assert os.listdir(directory(site.paths)) == []
    (item,) = requests.waiting(site.paths)
    assert (item.errand.attempts, item.request.refused) == (1, True)
    assert list(site.store.rglob("*.sqsh")) == []


def shared(site: Node, tree: Path, owner: User) -> None:
    """Have a tree packed for the site, that one account may have files in; a job of another account asks."""
    granted = SharedPath(f"{tree.parent}/*", (User("ws-nobody", 1), owner), "site", "", "everyone")
    whose = ("site", "ws-bob", os.getuid(), os.getgid())
    asked = TreeRequest(str(tree), "", *whose, "test", 9, NODE, shared=granted)
    assert requests.ask(site.paths, asked)


@pytest.mark.threat(54)
def test_the_copy_of_many_is_roots_and_its_producer_is_who_owns_the_tree(site: Node, tree: Path) -> None:
    """So that blocking who wrote it takes it away, and blocking who asked for it does not."""
    owner = User("ws-alice", tree.stat().st_uid)
    shared(site, tree, owner)
    assert packs(site) == 0
    packed = {(event["scope"], event["user"]) for event in site.events("tree.packed")}
    assert packed == {(SCOPE, "ws-alice"), ("site", "ws-bob")}
    (bundle,) = (site.store / "artifacts" / "site").rglob("*.sqsh")
    listed = subprocess.run(["/usr/bin/unsquashfs", "-lln", bundle], check=True, capture_output=True, text=True).stdout
    found = [line.split()[1] for line in listed.splitlines() if "squashfs-root" in line]
    assert {*found} == {f"0/{tree.stat().st_gid}"}
    made = json.loads(bundle.with_suffix(".json").read_text())
    assert [made["producer"]["user"], made["producer"]["uid"]] == [*owner]
    assert made["facts"]["owners"] == f"1 {owner.uid}"


@pytest.mark.threat(54)
def test_what_cannot_be_shared_is_told_to_whoever_asks(site: Node, tree: Path) -> None:
    """With the file and what is wrong with it; another user's wish does not have it tried again at once."""
    (tree / "pyvenv.cfg").chmod(0o664)
    shared(site, tree, User("ws-alice", tree.stat().st_uid))
    assert packs(site) == 0
    (failed,) = site.events("tree.pack-failed")
    problem = "pyvenv.cfg: others than its owner may write it; so no copy is made of it"
    assert failed["error"]["code"] == "tree-not-shared"
    assert failed["error"]["reason"].endswith(problem)
    (waiting,) = requests.waiting(site.paths)
    other = requests.ask(site.paths, waiting.request._replace(uid=7, user="ws-carol", problem="", refused=False))
    assert other is not None
    assert other.request.problem.endswith(problem)
    assert requests.due(site.paths) == []


def limit(site: Node, *, keep: int) -> None:
    """Change how many bytes of trees a node keeps."""
    site.write(offering(site.policy, keep=keep))


def test_a_tree_that_no_node_may_keep_is_not_published(site: Node, tree: Path) -> None:
    """Each job would be told that it cannot be fetched."""
    limit(site, keep=100)
    assert packs(site) == 0
    (failed,) = site.events("tree.pack-failed")
    assert failed["error"]["code"] == "tree-too-large"
    assert "nodes keep 100 of all trees" in failed["error"]["reason"]
    assert list(site.store.rglob("*.sqsh")) == []


def test_a_pack_makes_room_in_the_quota_of_its_scope(site: Node, tree: Path) -> None:
    """By the copy that no job has used for longest, at once: maintenance looks once a day. One in use stays."""
    assert packs(site) == 0
    (first,) = site.store.rglob("*.sqsh")
    quota = site.policy.maintenance._replace(per_user=first.stat().st_size * 2)
    site.write(site.policy._replace(maintenance=quota))
    os.utime(tree / "pyvenv.cfg", (1, 1))
    ask(site, tree)
    assert packs(site) == 0
    assert [event["error"]["code"] for event in site.events("tree.pack-failed")] == ["cache-quota-exceeded"]
    os.utime(first, (time.time() - 4 * 3600, time.time() - 4 * 3600))
    (item,) = requests.waiting(site.paths)
    Errands(site.paths, requests.PACKS).put(item.errand._replace(due=int(time.time()), attempts=0), item.request)
    assert packs(site) == 0
    (removed,) = site.events("bundle.removed")
    assert (removed["bundle"], removed["tree"]) == (first.stem, str(tree))
    assert [path != first for path in site.store.rglob("*.sqsh")] == [True]


def test_one_node_packs_a_tree(site: Node, tree: Path) -> None:
    """Another one that is at it is enough."""
    seen = current.look(str(tree), [str(tree.parent)], "", [])
    where = place.place_of(str(site.store), SCOPE, place.facts_of(seen, None))
    with site.client() as store, store.locked_namespace(where, Deadline(time.monotonic() + 9)) as is_ours:
        assert is_ours
        assert packs(site) == 0
    assert site.events("tree.packed") == []

"""Trees wait and are packed: what becomes of each, and who is told."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.lib.node import SCOPE
from tests.lib.policy_site import offering
from tests.lib.wings.trees.sites import ME, TreeSite
from warmstart.caches.store import bundles, client, gc, layout
from warmstart.host.deadline import after
from warmstart.policy.keys import User
from warmstart.policy.shared import SharedPath
from warmstart.queue import KEPT_S, Item, Queue
from warmstart.wings.trees import current, packing, place, requests
from warmstart.wings.trees.offered import directory
from warmstart.wings.trees.requests import PACKS, TreeRequest


def shared(node: TreeSite, tree: Path) -> SharedPath:
    """Return a rule by which the site has one copy of a tree of its owner's."""
    owners = (User("ws-nobody", 1), User("ws-owner", tree.stat().st_uid))
    return SharedPath(f"{node.trees}/*", owners, "site", "everyone")


def stored(node: TreeSite) -> list[Path]:
    return [*node.store.rglob("*.sqsh")]


def test_a_tree_is_packed_once(node: TreeSite) -> None:
    """Its copy has the tree below a directory that only its user enters; nothing stays, of a killed attempt either."""
    tree = node.tree("env")
    assert node.ask(tree, job=6)
    Path(directory(node.paths), "stage", "tree").mkdir(parents=True)
    Path(directory(node.paths), "packed.sqsh").write_text("half")
    for job in (7, 8):
        assert node.ask(tree, job=job)
        node.pack()
        (packed,) = node.events("tree.packed")
        assert requests.waiting(node.paths) == []
    assert (packed["tree"], packed["files"], packed["bytes"], packed["left_out"]) == (str(tree), 6, 20, 0)
    assert packed["job_id"] == 6  # which asked first
    assert node.left() == []
    copy, owner = node.copy(), f"{ME.uid}/{ME.gid}"
    assert copy[""] == ("drwx------", owner)
    assert copy["lib/python3.11/site-packages/one/__init__.py"][1] == owner


@pytest.mark.threat(50)
def test_what_cannot_be_packed_waits(node: TreeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that is too large leaves nothing but the request for a later attempt."""
    monkeypatch.setattr(packing, "MOST_FILES", 5)
    assert node.ask(node.tree("env"))
    node.pack()
    node.pack()
    (failed,) = node.events("tree.pack-failed")
    assert (failed["error"]["code"], failed["attempt"]) == ("tree-refused", 1)
    (item,) = requests.waiting(node.paths)
    assert (item.item.attempts, item.request.refused) == (1, True)
    assert (node.left(), stored(node)) == ([], [])


@pytest.mark.threat(54)
def test_the_copy_of_many_is_roots_and_its_producer_is_who_owns_the_tree(node: TreeSite) -> None:
    """So that blocking who wrote it takes it away, and blocking who asked for it does not."""
    tree = node.tree("env")
    rule = shared(node, tree)
    assert node.ask(tree)
    assert node.ask(tree, shared=rule)
    node.pack()
    assert sorted(event["scope"] for event in node.events("tree.packed")) == ["site", SCOPE]
    assert {owner for _, owner in node.copy("site").values()} == {f"0/{tree.stat().st_gid}"}
    (where,) = layout.namespaces(str(node.store), "site")
    (made,) = gc.survey(where)
    assert [made.user, made.uid] == [*rule.owners[1]]
    assert bundles.facts(where)["owners"] == f"1 {rule.owners[1].uid}"


@pytest.mark.threat(54)
def test_what_cannot_be_shared_is_told_to_whoever_asks(node: TreeSite) -> None:
    """With the file, what is wrong with it, and when it is tried again: another user's wish does not have it tried."""
    tree = node.tree("env")
    (tree / "pyvenv.cfg").chmod(0o664)
    assert node.ask(tree, shared=shared(node, tree))
    node.pack()
    problem = "pyvenv.cfg: others than its owner may write it"
    code, reason = node.outcome()
    assert (code, problem in str(reason)) == ("tree-refused", True)
    (waiting,) = requests.waiting(node.paths)
    carols = waiting.request._replace(uid=7, user="ws-carol", problem="", refused=False)
    other = requests.ask(node.paths, carols)
    assert other is not None
    assert (problem in other.request.problem, other.next > time.time()) == (True, True)
    assert requests.due(node.paths) == []
    Queue(node.paths, PACKS).put(waiting.item._replace(due=int(time.time())), waiting.request)
    other = requests.ask(node.paths, carols)
    assert other is not None
    assert (other.request.problem, other.next) == ("", 0)  # its cause may be gone


def test_a_tree_that_no_node_may_keep_is_not_published(node: TreeSite) -> None:
    """Each job would be told that it cannot be fetched."""
    node.write(offering(node.policy, trees={"prefixes": [str(node.trees)], "keep": "100B"}))
    assert node.ask(node.tree("env"))
    node.pack()
    code, reason = node.outcome()
    assert (code, "nodes keep 100 of all trees" in str(reason)) == ("tree-refused", True)
    assert stored(node) == []


def test_a_pack_makes_room_in_the_quota_of_its_scope(node: TreeSite) -> None:
    """By the copy that no job has used for longest, at once: maintenance looks once a day. One in use stays."""
    tree = node.tree("env")
    assert node.ask(tree)
    node.pack()
    (first,) = stored(node)
    quota = node.policy.maintenance._replace(per_user=first.stat().st_size * 2)
    node.write(node.policy._replace(maintenance=quota))
    os.utime(tree / "pyvenv.cfg", (1, 1))
    assert node.ask(tree)
    node.pack()
    assert [event["error"]["code"] for event in node.events("tree.pack-failed")] == ["cache-quota-exceeded"]
    os.utime(first, (time.time() - 4 * 3600, time.time() - 4 * 3600))
    (item,) = requests.waiting(node.paths)
    Queue(node.paths, PACKS).put(item.item._replace(due=int(time.time()), attempts=0), item.request)
    node.pack()
    (removed,) = node.events("bundle.removed")
    assert (removed["bundle"], removed["tree"]) == (first.stem, str(tree))
    (left,) = stored(node)
    assert left != first


@pytest.mark.threat(57)
def test_an_old_copy_is_replaced_by_one_of_the_tree_as_it_is(node: TreeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was edited in place and shows in no marker comes with it; a young copy stays."""
    tree = node.tree("env")
    edited = tree / "lib/python3.11/site-packages/one/__init__.py"
    assert node.ask(tree)
    node.pack()
    (first,) = node.bundles()
    edited.chmod(0o600)
    assert node.ask(tree)
    node.pack()
    assert node.bundles() == [first]
    monkeypatch.setattr(packing, "RENEWED_S", 0)
    assert node.ask(tree)
    node.pack()
    (second,) = node.bundles()
    assert second != first
    (removed,) = node.events("bundle.removed")
    assert (removed["bundle"], removed["reason"]) == (first, "packed anew")
    assert node.copy()[str(edited.relative_to(tree))][0] == "-rw-------"


def test_one_node_packs_a_tree(node: TreeSite) -> None:
    tree = node.tree("env")
    seen = current.look(str(tree), [str(node.trees)], "", [])
    where = place.place_of(str(node.store), SCOPE, place.facts_of(seen, None))
    assert node.ask(tree)
    store = node.client()
    with client.locked_namespace(store, where, after(60)) as is_ours:
        assert is_ours  # as another node has it
        node.pack()
    assert node.events("tree.packed") == []


def request(tree: str = "/t", uid: int = 1) -> TreeRequest:
    return TreeRequest(tree, "", f"user-{uid}-u", "u", uid, uid, "c", 7, "n1")


def tried(node: TreeSite, item: TreeRequest, ago_s: float = 0.0) -> None:
    due = int(time.time() - ago_s + PACKS.backoff_s)
    Queue(node.paths, PACKS).put(Item(str(item.uid), due, 1, item.key), item)


def due(node: TreeSite) -> set[tuple[str, int]]:
    return {(item.request.tree, item.request.uid) for item in requests.due(node.paths)}


@pytest.mark.threat(54)
def test_each_user_may_have_one_tree_packed(node: TreeSite) -> None:
    """Of a tree that many share, too: each user's process may try, and nobody waits for another's that is killed."""
    for tree, uid in (("/shared", 1), ("/own", 1), ("/shared", 2)):
        assert requests.ask(node.paths, request(tree, uid=uid)._replace(scope="site"))
    assert due(node) == {("/shared", 1), ("/own", 1), ("/shared", 2)}
    killed = request("/shared")._replace(scope="site", problem="the process died")
    tried(node, killed)
    assert due(node) == {("/own", 1), ("/shared", 2)}
    tried(node, killed._replace(refused=True))  # by the tree, not by its user's process
    assert due(node) == {("/own", 1)}


def test_a_request_that_is_about_to_be_forgotten_is_made_anew(node: TreeSite) -> None:
    tried(node, request()._replace(problem="it has more"), ago_s=KEPT_S + 5)
    asked = requests.ask(node.paths, request())
    assert asked is not None
    assert (asked.request.problem, len(requests.due(node.paths))) == ("", 1)


def test_a_damaged_request_goes(node: TreeSite) -> None:
    requests.ask(node.paths, request())
    queue = Queue(node.paths, PACKS)
    Path(queue.directory, queue.all()[0].name).write_text("{")
    assert requests.due(node.paths) == []
    assert queue.all() == []

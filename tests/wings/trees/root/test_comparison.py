"""Copies that are compared with their trees, with the rights of their users: found, taken out, packed anew."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import odd_files
from tests.wings.trees.sites import ALICE, BOB, TreeSite, a_tree_site, scope_of
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.wings.trees import client, comparison, errands, packing
from warmstart.wings.trees.current import Look

PACKAGE = "lib/python3.11/site-packages/one"


def know(monkeypatch: pytest.MonkeyPatch, *users: Identity) -> None:
    """Have the node know these users, and no others."""
    known = {user.name: SimpleNamespace(pw_uid=user.uid, pw_gid=user.gid) for user in users}
    monkeypatch.setattr(comparison, "pwd", SimpleNamespace(getpwnam=known.__getitem__))


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the priority of the tests as it is, know the users, and shorten what hangs."""
    know(monkeypatch, ALICE, BOB)
    monkeypatch.setattr(process, "be_idle", lambda: None)
    monkeypatch.setattr(client, "PIECE_S", 2.0)
    monkeypatch.setattr(comparison, "LOOK_S", 2.0)
    monkeypatch.setattr(packing, "QUIET_S", 0.0)


@pytest.fixture
def site(base: Path, capable_host: None) -> Iterator[TreeSite]:
    """Return a node that has a copy of ws-tree-alice's tree `env`."""
    with a_tree_site(base) as site:
        packed(site)
        yield site


def packed(site: TreeSite, user: Identity = ALICE, name: str = "env") -> Path:
    """Have a tree packed, and its copy on the node."""
    tree = site.tree(name, user)
    (tree / PACKAGE / "__init__.py").write_text(name)  # two trees alike are one copy on the node
    assert site.ask(tree, user)
    site.pack()
    site.fetch(user)
    return tree


def edit(site: TreeSite, name: str = "env") -> None:
    """Edit a file in place, as its user."""
    (site.trees / name / PACKAGE / "__init__.py").write_text("one, mended\n")


@pytest.mark.threat(57)
def test_a_tree_that_was_edited_in_place_is_packed_anew(site: TreeSite) -> None:
    """The audit says under its user what has changed; a tree that is as it was keeps its copy."""
    packed(site, BOB, "other")
    edit(site)
    site.compare()
    (event,) = site.events("tree.compared")
    told = (event["tree"], event["names"], event["changed"], event["examples"])
    assert told == (str(site.trees / "env"), 6, 1, [[f"{PACKAGE}/__init__.py", "size"]])
    (removed,) = site.events("bundle.removed")
    assert (removed["tree"], removed["reason"]) == (event["tree"], "the tree has changed")
    assert site.bundles() == []
    (same,) = site.events("tree.compared", BOB)
    assert (same["changed"], len(site.bundles(BOB))) == (0, 1)
    assert site.ask(site.trees / "env")
    site.pack()
    assert len(site.bundles()) == 1
    assert site.left() == []


@pytest.mark.threat(57)
def test_a_copy_is_compared_once_in_a_while(site: TreeSite) -> None:
    """By one node for all that have it; `trees.compare` says how often, or never."""
    site.compare()
    edit(site)
    site.compare()
    assert len(site.events("tree.compared")) == 1
    site.policy(compare="null")
    (stamp,) = (site.base / "store").rglob("compared")
    os.utime(stamp, (1, 1))
    site.compare()
    assert len(site.events("tree.compared")) == 1
    site.policy()
    with site.site.client() as store:
        assert store.lock(after(20), errands.COMPARISONS.name)  # another node is at it
        site.compare()
        assert len(site.events("tree.compared")) == 1
    site.compare()
    assert (len(site.events("tree.compared")), site.bundles()) == (2, [])


@pytest.mark.timed
@pytest.mark.threat(58)
def test_what_cannot_be_compared_keeps_its_copy(site: TreeSite) -> None:
    """A tree that is gone, that its user cannot reach, or that hangs; none keeps others waiting for long."""
    tree, away = site.trees / "env", site.trees / "away"
    packed(site, BOB, "other")
    edit(site, "other")
    tree.rename(away)
    site.compare()
    assert (site.events("tree.compared"), site.events("tree.compared", BOB)[0]["changed"]) == ([], 1)
    again(site)
    tree.mkdir()
    with odd_files.hanging(tree, ALICE.uid):
        site.compare()
    again(site)
    tree.rmdir()
    away.rename(tree)
    site.trees.chmod(0o700)
    site.compare()
    site.trees.chmod(0o755)
    assert (site.events("tree.compared"), len(site.bundles())) == ([], 1)
    again(site)
    site.compare()
    assert [event["changed"] for event in site.events("tree.compared")] == [0]
    assert site.left() == []


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return whose trees are compared, in turn; a comparison takes a tenth of a second at least."""
    seen: list[str] = []
    real = comparison.compare

    def compare(item: comparison.Here, *rest: Any) -> None:  # noqa: ANN401 - the real one's
        seen.append(item.where.scope)
        time.sleep(0.1)
        real(item, *rest)

    monkeypatch.setattr(comparison, "compare", compare)
    return seen


@pytest.mark.threat(58)
def test_scopes_take_turns(site: TreeSite, turns: list[str]) -> None:
    """However many trees a user has, and however long ago they were compared."""
    for name in ("env2", "env3"):
        packed(site, ALICE, name)
    packed(site, BOB, "other")
    site.compare()
    assert turns.index(scope_of(BOB)) <= 1
    assert (len(turns), len(site.events("tree.compared")), len(site.events("tree.compared", BOB))) == (4, 3, 1)


@pytest.mark.timed
@pytest.mark.threat(58)
def test_who_stops_the_process_that_looks_costs_the_own_turn(
    site: TreeSite, turns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, not once for each tree; the audit says what it was."""
    for name in ("env2", "env3"):
        packed(site, ALICE, name)
    packed(site, BOB, "other")
    real = client.TreeClient.look

    def look(own: client.TreeClient, *rest: Any) -> Look:  # noqa: ANN401 - the real one's
        if own._worker.identity == ALICE:
            own._worker._start()
            os.kill(own._worker._pid, signal.SIGSTOP)
        return real(own, *rest)

    monkeypatch.setattr(client.TreeClient, "look", look)
    site.compare()
    assert sorted(turns) == [scope_of(ALICE), scope_of(BOB)]
    log = (site.base / "audit" / "audit.jsonl").read_text().splitlines()
    (event,) = [event for event in map(json.loads, log) if event["event"] == "step.failed"]
    assert event["error"]["code"] == "worker-stopped"
    assert f"the process of {ALICE.name}" in event["error"]["reason"]
    assert len(site.events("tree.compared", BOB)) == 1


def again(site: TreeSite) -> None:
    """Have every copy compared by the next run."""
    for stamp in (site.base / "store").rglob("compared"):
        os.utime(stamp, (1, 1))


def test_what_the_markers_show_is_not_compared(site: TreeSite) -> None:
    """No job gets that copy any more."""
    edit(site)
    (site.trees / "env/lib/python3.11/site-packages/two").mkdir()
    site.compare()
    assert (site.events("tree.compared"), len(site.bundles())) == ([], 1)


@pytest.mark.threat(58)
def test_whose_rights_are_used(site: TreeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the copy's user, if this node knows that user by that uid, and serves it; never root's."""
    edit(site)
    (site.trees / "env" / PACKAGE).chmod(0o700)
    for known in ([], [ALICE._replace(uid=64399)], [ALICE._replace(uid=7)]):
        know(monkeypatch, *known)
        again(site)
        site.compare()
    assert (site.events("tree.compared"), len(site.bundles())) == ([], 1)


@pytest.mark.threat(58)
def test_a_manifest_that_names_another_user_is_not_believed(site: TreeSite) -> None:
    """Who can write to the store gets no process with the rights of whom they like."""
    (where,) = (site.base / "store/artifacts" / scope_of(ALICE) / "whole-trees").iterdir()
    for file in where.glob("*Z-*.json"):
        text = file.read_text().replace(ALICE.name, BOB.name).replace(f'"uid":{ALICE.uid}', f'"uid":{BOB.uid}')
        file.chmod(0o644)
        file.write_text(text.replace(f"user-{BOB.uid}-{BOB.name}", scope_of(ALICE)))
        file.chmod(0o444)
    edit(site)
    site.compare()
    assert (site.events("tree.compared"), site.events("tree.compared", BOB)) == ([], [])

"""`warmstart trees` on a store of ours with packed copies: what it shows and changes, and its exit statuses."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from tests.lib.command_line import POLICY, answer, installed
from tests.lib.node import NODE, SCOPE, OsAs
from tests.lib.wings.trees.sites import ME, TreeSite
from warmstart import session as sessions
from warmstart.host import detached
from warmstart.store import reports
from warmstart.wings.trees import packing, requests

PACKAGES = "lib/python3.11/site-packages"


@pytest.fixture
def tree(node: TreeSite, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tree of which there is a copy; its user is an account of this host."""
    monkeypatch.setattr(detached, "start", lambda _argv, **_: None)
    monkeypatch.setattr(pwd, "getpwnam", {ME.name: pwd.getpwuid(os.getuid())}.__getitem__)
    tree = node.tree("env")
    os.mkfifo(tree / "fifo")
    pack(node, tree)
    return tree


def pack(node: TreeSite, tree: Path, marker: str = "") -> None:
    assert node.ask(tree, marker=marker)
    node.pack()


def rows(node: TreeSite) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.json("trees", "list")
    return found


def test_copies_are_listed(node: TreeSite, tree: Path) -> None:
    """Which of one tree's is never shown any more, too. STATE is by what jobs ask for: the tree, or a file in it."""
    (tree / PACKAGES / "two").mkdir()
    pack(node, tree)
    pack(node, tree, "pyvenv.cfg")
    old, new, named = rows(node)
    assert [row["state"] for row in (old, new, named)] == ["older", "newest", "newest"]
    assert (new["tree"], new["user"], new["scope"], named["marker"]) == (str(tree), ME.name, SCOPE, "pyvenv.cfg")
    assert (new["here"], new["packed"] >= old["packed"]) == ([], True)
    head, first, *_, last = node.command("trees", "list").stdout.splitlines()
    assert head.split() == ["ID", "USER", "SIZE", "PACKED", "USED", "STATE", "TREE"]
    assert (first.split()[0], last.split()[-1]) == (old["id"], str(tree))
    assert node.command("trees", "list", "--user", "bob").exit_code == 1


def test_what_waits_to_be_packed_is_listed(node: TreeSite, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / PACKAGES / "two").mkdir()
    monkeypatch.setattr(packing, "MOST_FILES", 3)
    pack(node, tree)
    other = tree.parent / "other"
    assert node.ask(other)
    first, second = sorted(node.command("trees", "list").stderr.splitlines(), key=len, reverse=True)
    assert f"{tree} waits on {NODE} to be packed for {ME.name}: it has more than 3 files" in first
    assert second.endswith(f"{other} waits on {NODE} to be packed for {ME.name}")
    assert "waits" not in node.command("trees", "list", "--user", "bob").stderr


def test_a_removed_copy_is_packed_anew_though_nothing_shows_a_change(node: TreeSite, tree: Path) -> None:
    (old,) = rows(node)
    (tree / PACKAGES / "one/__init__.py").write_text("edited in place")
    assert node.bundles() == [old["bundle"]]
    assert node.json("trees", "rm", str(tree)) == {"removed": [old["bundle"]], "withdrawn": 0}
    (event,) = node.events("bundle.removed")
    assert (event["tree"], event["bundle"], event["reason"]) == (str(tree), old["bundle"], "removed by root")
    assert node.bundles() == []
    pack(node, tree)
    (new,) = rows(node)
    assert (new["stamp"], node.bundles(), new["bundle"] != old["bundle"]) == (old["stamp"], [new["bundle"]], True)


def test_all_of_a_tree_is_removed_but_what_is_another_users(node: TreeSite, tree: Path) -> None:
    (tree / PACKAGES / "two").mkdir()
    pack(node, tree)
    assert node.ask(tree)
    assert node.command("trees", "rm", str(tree), "--user", "bob").exit_code == 1
    removed = node.json("trees", "rm", f"{os.path.relpath(tree)}/")
    assert (len(removed["removed"]), removed["withdrawn"], requests.waiting(node.paths)) == (2, 1, [])
    assert node.command("trees", "list").exit_code == 1


def test_a_path_of_no_copy_is_an_error_with_a_hint(node: TreeSite, tree: Path) -> None:
    """The usual reason is a link in it."""
    (tree.parent / "link").symlink_to("env")
    result = node.command("trees", "rm", str(tree.parent / "link"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no copy of" in result.stderr
    assert "`realpath`" in result.stderr


def test_a_copy_is_neither_compacted_nor_given_to_others(node: TreeSite, tree: Path) -> None:
    (row,) = rows(node)
    (squashfs,) = node.store.rglob("*.sqsh")
    assert node.command("cache", "compact").exit_code == 0
    assert node.command("cache", "promote", row["bundle"], "--to", "site").exit_code == 2
    assert squashfs.exists()


def test_users_remove_nothing_and_list_the_trees_of_their_own_jobs(
    node: TreeSite, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last use of each, as its job's report tells it."""
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    result = node.command("trees", "rm", "/t")
    assert (result.exit_code, "this needs root: warmstart trees" in result.stderr) == (2, True)
    assert node.command("trees", "list").exit_code == 1
    for job, told in (7, {"/a": "packed copy", "/b": "the tree itself"}), (8, {"/a": "the tree itself"}):
        known = {"hook": "prolog", "run_id": "0a", "node": "n1", "job_id": job, "uid": ME.uid, "user": ME.name}
        line = {"ts": job, "event": "hook.finished", "told": {"tree": told, "ports": {"/c": "no tree"}}, **known}
        text = f"{json.dumps(line)}\n"
        reports.leave(str(node.store), ME.uid, reports.name_of(job, "0a", "n1"), text, True)
    assert [(row["tree"], row["job"], row["how"]) for row in rows(node)] == [
        ("/a", 8, "the tree itself"),
        ("/b", 7, "the tree itself"),
    ]


RULE = "  - {name: all, trees: [{path: /lustre/*, owners: [root], scope: site}]}\n"


@pytest.mark.report
@pytest.mark.parametrize(
    ("way", "word", "said"),
    [
        ("spank", "env", "a path begins with /"),
        ("spank", "/home/alice/env", "it is below none of trees.prefixes"),
        ("spank", "/lustre/env", "read-only, from a packed copy if there is one"),
        ("link", "/lustre/env", "as it is: this node shows no copies"),
        ("link", "/lustre/env", "Trees at /lustre/*, of root: one copy, in site (rule all)."),
    ],
)
def test_a_plan_says_how_a_tree_is_read(tmp_path: Path, way: str, word: str, said: str) -> None:
    policy = f"{POLICY}{RULE}constant_path: {way}\ntrees: {{prefixes: [/lustre]}}\n"
    plan = answer(installed(tmp_path, policy), "plan", "--user", "nobody", "--comment", f"warmstart: tree={word}")
    assert said in str(plan["verdict"]) + str(plan["remarks"])

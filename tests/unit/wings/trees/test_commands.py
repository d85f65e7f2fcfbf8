"""`warmstart trees` on a store of ours with packed copies: what it shows and changes, and its exit statuses."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from tests.lib.command_line import POLICY, answer, installed
from tests.lib.node import NODE, SCOPE, Node, OsAs
from tests.lib.wings.trees.asked import ask, offer_trees, packs
from warmstart import session as sessions
from warmstart.host import detached
from warmstart.store import bundles, reports
from warmstart.wings.trees import commands as trees
from warmstart.wings.trees import current, packing, place, requests


class Copied:
    """A site with a copy of a tree, made by an account of this host."""

    def __init__(self, site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.started: list[list[str]] = []
        monkeypatch.setattr(detached, "start", lambda argv, **_: self.started.append(argv))
        account = pwd.getpwuid(os.getuid())
        monkeypatch.setattr(pwd, "getpwnam", {"ws-alice": account}.__getitem__)
        self.tree = offer_trees(site, monkeypatch)
        self.pack()

    def pack(self, marker: str = "") -> None:
        """Have the tree packed as it is now, as a job does."""
        ask(self.site, self.tree, marker)
        packs(self.site)

    def change(self) -> None:
        """Change the tree as an installation does."""
        (self.tree / "lib" / "python3.11" / "site-packages").mkdir(parents=True)

    def rows(self, *options: str) -> list[dict[str, Any]]:
        """Return the copies that are listed."""
        found: list[dict[str, Any]] = self.site.json("trees", "list", *options)
        return found

    def offered(self) -> bool:
        """Return whether a job would find a copy of the tree as it is now."""
        seen = current.look(str(self.tree), [str(self.tree.parent)], "", [])
        where = place.place_of(str(self.site.store), SCOPE, place.facts_of(seen, None))
        return bool(bundles.offers(where.store, [SCOPE], where.profile, where.name, "n1-test").offers)

    def waiting(self) -> list[tuple[str, str, int]]:
        """Return what waits to be packed: tree, user, attempts."""
        return [
            (item.request.tree, item.request.user, item.errand.attempts) for item in requests.waiting(self.site.paths)
        ]


@pytest.fixture
def copied(node: Node, monkeypatch: pytest.MonkeyPatch) -> Copied:
    """Return a site with a copy."""
    return Copied(node, monkeypatch)


def test_copies_are_listed(copied: Copied) -> None:
    """With their sizes, who asked, when, and which of one tree's is never shown any more."""
    copied.change()
    copied.pack()
    old, new = copied.rows()
    assert [row["state"] for row in (old, new)] == ["older", "newest"]
    assert (new["tree"], new["user"], new["scope"], new["node"]) == (str(copied.tree), "ws-alice", SCOPE, NODE)
    assert (new["files"], new["bytes"], new["here"], new["packed"] > old["packed"]) == (5, 1, [], True)
    head, first, second = copied.site.command("trees", "list").stdout.splitlines()
    assert head.split() == ["ID", "USER", "SIZE", "FILES", "PACKED", "USED", "STATE", "NODE", "TREE"]
    assert (first.split()[0], second.split()[-1]) == (old["id"], str(copied.tree))
    assert copied.site.command("trees", "list", "--user", "bob").exit_code == 1


def test_a_tree_with_and_without_a_named_file_has_two_newest_copies(copied: Copied) -> None:
    """Jobs are shown the one that they ask for."""
    copied.pack("pyvenv.cfg")
    assert [(row["marker"], row["state"]) for row in copied.rows()] == [("", "newest"), ("pyvenv.cfg", "newest")]


def test_what_waits_to_be_packed_is_listed(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last attempt's problem; also where there is no copy yet."""
    (copied.tree / "more").mkdir()
    monkeypatch.setattr(packing, "MOST_FILES", 3)
    copied.pack()
    other = copied.tree.parent / "other"
    ask(copied.site, other)
    listed = copied.site.command("trees", "list")
    first, second = sorted(listed.stderr.splitlines(), key=len, reverse=True)
    assert f"{copied.tree} waits on {NODE} to be packed for ws-alice: it has more than 3 files" in first
    assert second.endswith(f"{other} waits on {NODE} to be packed for ws-alice")
    assert "waits" not in copied.site.command("trees", "list", "--user", "bob").stderr


def test_a_removed_copy_is_packed_anew_though_nothing_shows_a_change(copied: Copied) -> None:
    """It is of no use from then on; what comes in its place has what is in the tree now."""
    (old,) = copied.rows()
    before = os.stat(copied.tree)
    (copied.tree / "lib" / "empty.py").write_text("edited in place")
    os.utime(copied.tree, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert copied.offered()
    assert copied.site.json("trees", "rm", str(copied.tree)) == {"removed": [old["bundle"]], "withdrawn": 0}
    assert not copied.offered()
    copied.pack()
    (new,) = copied.rows()
    assert (new["bytes"], new["stamp"], copied.offered()) == (16, old["stamp"], True)


def test_a_tree_is_removed(copied: Copied) -> None:
    """All its copies, and what waits of it; not those of other users, if one is named."""
    copied.change()
    copied.pack()
    ask(copied.site, copied.tree)
    assert copied.site.command("trees", "rm", str(copied.tree), "--user", "bob").exit_code == 1
    removed = copied.site.json("trees", "rm", f"{copied.tree}/")
    assert (len(removed["removed"]), removed["withdrawn"], copied.waiting()) == (2, 1, [])
    assert copied.site.command("trees", "list").exit_code == 1
    assert {event["reason"] for event in copied.site.events("bundle.removed")} == {"removed by root"}


def test_a_path_of_no_copy_is_an_error_with_a_hint(copied: Copied) -> None:
    """The usual reason is a link in it."""
    (copied.tree.parent / "link").symlink_to("env")
    result = copied.site.command("trees", "rm", str(copied.tree.parent / "link"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no copy of" in result.stderr
    assert "`realpath`" in result.stderr


def test_the_store_is_for_root_alone(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `warmstart cache` is, but by its own name."""
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    result = copied.site.command("trees", "rm", "/t")
    assert (result.exit_code, "this needs root: warmstart trees" in result.stderr) == (2, True)


def test_users_list_the_trees_of_their_own_jobs(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last use of each, as its job's report tells it."""
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    assert copied.site.command("trees", "list").exit_code == 1
    uid = os.getuid()
    for job, told in (7, {"/a": "packed copy", "/b": "the tree itself"}), (8, {"/a": "the tree itself"}):
        known = {"hook": "prolog", "run_id": "0a", "node": "n1", "job_id": job, "uid": uid, "user": "ws-alice"}
        lines = [{"step": "tree", "told": told}, {"step": "ports", "told": {"/c": "no tree"}}]
        text = "".join(json.dumps({"ts": job, "event": "step.finished", **line, **known}) + "\n" for line in lines)
        reports.leave(str(copied.site.store), uid, reports.name_of(job, "0a", "n1"), text, True)
    assert [(row["tree"], row["job"], row["how"]) for row in copied.site.json("trees", "list")] == [
        ("/a", 8, "the tree itself"),
        ("/b", 7, "the tree itself"),
    ]


def test_a_path_is_taken_as_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to where the command runs."""
    monkeypatch.chdir(tmp_path)
    assert trees._named("env/../other/") == str(tmp_path / "other")


@pytest.mark.report
@pytest.mark.parametrize(
    ("word", "said"),
    [("env", "a path begins with /"), ("/home/alice/env", "it is below none of trees.prefixes")],
)
def test_a_plan_says_what_is_wrong_with_a_tree(tmp_path: Path, word: str, said: str) -> None:
    """A relative path is refused, as the job's is; one elsewhere is read as it is."""
    policy = POLICY + "constant_path: spank\ntrees: {prefixes: [/lustre]}\n"
    plan = answer(installed(tmp_path, policy), "plan", "--user", "nobody", "--comment", f"warmstart: tree={word}")
    assert said in str(plan["verdict"]) + str(plan["remarks"])

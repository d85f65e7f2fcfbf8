"""`warmstart cache` on a store of ours: what it shows, checks and changes, and its exit statuses."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.lib.node import SCOPE, Node, OsAs, one
from warmstart import session as sessions
from warmstart.caches.store import gc
from warmstart.caches.store.gc import What
from warmstart.host.deadline import after


@pytest.fixture
def site(node: Node) -> Node:
    for entry in "ab":
        node.publish(one(entry, b"x" * 5000), scope=SCOPE)
    return node


def test_bundles_are_listed_and_shown(site: Node) -> None:
    first, second = site.json("cache", "list")
    assert (first["scope"], first["profile"], first["namespace"], first["entries"]) == (SCOPE, "numba", "ns", 1)
    assert first["bundle"] != second["bundle"]
    for only in (("--scope", "site"), ("--profile", "triton"), ("--namespace", "other")):
        assert site.command("cache", "list", *only).exit_code == 1
    assert site.command("cache", "list", "--scope", SCOPE, "--profile", "numba").exit_code == 0
    assert site.command("cache", "list", "--user", "nobody").exit_code == 1
    assert site.json("cache", "compact", "--namespace", "other")["compacted"] == 0
    head, row, _ = site.command("cache", "list").stdout.splitlines()
    assert head.split() == ["ID", "PROFILE", "ENTRIES", "SIZE", "USER", "NAMESPACE", "IMAGE"]
    assert row.split()[0] == first["bundle"][:12]
    shown = site.json("cache", "show", row.split()[0])
    assert (shown["bundle"], shown["user"], shown["facts"]) == (first["bundle"], "a", {"cpu": "x"})
    ((entry, files),) = shown["entries"].items()
    assert files[f"{entry}.nbi"][0] == 5000
    assert "facts.cpu:" in site.command("cache", "show", first["bundle"]).stdout
    gone = site.command("cache", "show", "0123456789ab")
    assert (gone.exit_code, "there is no bundle" in gone.stderr) == (1, True)


@pytest.mark.parametrize("suffix", [".sqsh", ".json"])
def test_a_damaged_bundle_leaves_its_listing(site: Node, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(gc, "is_due", lambda *_: True)
    assert site.json("maintain", "--store")["verified"] == 2
    bundle, other = (row["bundle"] for row in site.json("cache", "list"))
    path = site.directory(SCOPE) / f"{bundle}{suffix}"
    path.chmod(0o600)
    data = path.read_bytes()
    path.write_bytes(data[:70] + bytes([data[70] ^ 1]) + data[71:])
    assert site.json("maintain", "--store")["removed"] == 1
    assert [row["bundle"] for row in site.json("cache", "list")] == [other]
    assert not path.exists()
    assert [event["bundle"] for event in site.events("bundle.damaged")] == [bundle]


def test_a_bundle_can_be_removed(site: Node) -> None:
    bundle, other = (row["bundle"] for row in site.json("cache", "list"))
    assert site.command("cache", "rm", bundle[:8]).stdout == "1 removed\n"
    assert [row["bundle"] for row in site.json("cache", "list")] == [other]
    assert [(event["bundle"], event["reason"]) for event in site.events("bundle.removed")] == [
        (bundle, "removed by root")
    ]
    assert site.command("cache", "rm", bundle).exit_code == 1
    assert site.command("cache", "rm").exit_code == 2


def test_what_a_user_made_an_entry_and_what_is_old_can_be_removed(site: Node) -> None:
    site.publish({**one("c"), **one("d")}, scope="site", user="mallory", uid=2)
    removed = site.json("cache", "rm", "--entry", "a", "--entry", "c", "--scope", "site")
    assert (removed["removed"], removed["entries"]) == (0, 1)
    assert (sorted(site.offered()), site.offered("site")) == (["a", "b"], ["d"])
    (event,) = site.events("entries.removed")
    assert (event["scope"], event["entries"], event["number"]) == ("site", ["a", "c"], 1)
    assert site.command("cache", "rm", "--user", "mallory", "--user", "nobody").exit_code == 0
    assert site.offered("site") == []
    assert site.command("cache", "rm", "--before", "2d").exit_code == 1
    assert site.command("cache", "rm", "--before", "2999-01-01", "--scope", "site").exit_code == 1
    assert site.json("cache", "rm", "--before", "2999-01-01")["removed"] == 2


def test_what_only_reads_writes_no_events(site: Node) -> None:
    bundle = site.json("cache", "list")[0]["bundle"]
    site.command("cache", "show", bundle)
    assert site.events("hook.started") == []
    site.command("cache", "compact")
    assert len(site.events("hook.started")) == 1


@pytest.mark.parametrize("command", ["rm xxxxxx", "list", "show x", "compact", "promote x --to site"])
def test_only_root_may(site: Node, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    result = site.command("cache", *command.split())
    assert (result.exit_code, "this needs root" in result.stderr) == (2, True)


@pytest.mark.threat(32)
def test_a_namespace_goes_with_its_last_bundle(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = node.publish(one("a"))
    node.publish(one("b"), scope="site")
    client = node.client()
    client.worker.run(after(20), gc.take_out, node.namespace(), client.writer, What([bundle]))
    assert node.json("maintain", "--store")["swept"] == 0
    later = time.time() + 2 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    node.json("maintain", "--store")
    assert sorted(os.listdir(node.store / "caches")) == [".locks", "maintained", "site"]
    event = node.events("store.swept")[-1]
    assert (event["scope"], event["namespace"], event["names"]) == ("user-1-a", "ns", ["numba"])


@pytest.mark.threat(15)
def test_what_is_unused_or_too_much_goes(node: Node) -> None:
    old, used, new = (node.publish(one(name, os.urandom(3_000_000))) for name in "abc")
    for bundle, days in ((old, 100), (used, 1), (new, 50)):
        at = time.time() - days * 86400
        os.utime(node.directory() / f"{bundle}.sqsh", (at, at))
    keep = node.policy.maintenance._replace(keep=90 * 86400, per_user=4 << 20)
    node.write(node.policy._replace(maintenance=keep))
    assert "2 removed" in node.command("maintain", "--store").stdout
    assert set(node.seen().values()) == {used}
    assert {event["bundle"]: event["reason"] for event in node.events("bundle.removed")} == {
        old: "unused for longer than maintenance.keep",
        new: "its scope is close to its quota (maintenance.per_user)",
    }
    assert int(Path(node.store, "caches/user-1-a/used").read_text()) < 4 << 20
    assert node.json("maintain", "--store")["removed"] == 0

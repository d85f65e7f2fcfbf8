"""`warmstart cache` on a store of ours: what it shows, checks and changes, and its exit statuses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib import packed
from tests.lib.node import SCOPE, Node, OsAs, one
from warmstart import session as sessions
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import DiskFailed
from warmstart.repack import rewrite
from warmstart.repack.rewrite import RepackSettings
from warmstart.store import bundles, maintenance, manifest
from warmstart.store.bundles import Published
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Merger


@pytest.fixture
def site(node: Node) -> Node:
    for entry in "ab":
        node.publish(one(entry, b"x" * 5000), scope=SCOPE)
    return node


def written_over(site: Node, name: str, change: Callable[[bytes], bytes]) -> Path:
    (path,) = Path(site.store).rglob(name)
    path.chmod(0o600)
    path.write_bytes(change(path.read_bytes()))
    return path


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
    assert row.split()[0] == first["bundle"].partition("-")[2][:12]
    shown = site.json("cache", "show", row.split()[0])
    assert (shown["bundle"], shown["producer"]["user"], len(shown["entries"])) == (first["bundle"], "a", 1)
    assert "producer.node:" in site.command("cache", "show", first["bundle"]).stdout
    gone = site.command("cache", "show", "20200101T000000.000000Z-0123456789abcdef")
    assert (gone.exit_code, "there is no bundle" in gone.stderr) == (1, True)


def test_a_bundle_that_supersedes_is_shown_and_its_marks_outlive_it(node: Node) -> None:
    where = Namespace(str(node.store), SCOPE, "files", "ns")
    for name in ("other", "data"):
        packed.publish(node.base, where, {name: {name: b"old"}})
    made = packed.publish(node.base, where, {"data": {"data": b"new"}}, fresh=True)
    assert made.bundle
    shown = node.command("cache", "show", made.bundle).stdout
    assert "SUPERSEDES IN BUNDLES BEFORE" in shown
    assert node.json("cache", "show", made.bundle)["supersedes"] == {"data": made.bundle}
    maintenance.remove(where, "n1-test", [made.bundle])
    assert node.json("cache", "verify")["verified"] == 3
    assert node.json("cache", "compact")["compacted"] == 1
    assert node.json("cache", "verify")["damaged"] == {}
    offers = bundles.offers(where.store, [SCOPE], "files", "ns", "n1-test").offers
    assert [offer.entries for offer in offers] == [["other"]]


@pytest.mark.parametrize(
    ("suffix", "change"),
    [
        (".sqsh", lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:]),
        (".json", lambda data: data[:-2]),
        (".json", lambda data: data.replace(b"5000", b"5001")),
    ],
)
def test_a_damaged_bundle_is_quarantined(site: Node, suffix: str, change: Callable[[bytes], bytes]) -> None:
    assert site.json("cache", "verify")["verified"] == 2
    bundle = site.json("cache", "list")[0]["bundle"]
    path = written_over(site, f"{bundle}{suffix}", change)
    result = site.command("cache", "verify")
    assert (result.exit_code, "1 damaged" in result.stdout) == (1, True)
    assert bundle not in [one["bundle"] for one in site.json("cache", "list")]
    assert sorted(os.listdir(path.parent / "quarantine")) == [f"{bundle}.json", f"{bundle}.sqsh"]
    assert [event["bundle"] for event in site.events("bundle.quarantined")] == [bundle]
    assert site.command("cache", "verify", bundle).exit_code == 1  # it is not there any more


def test_an_old_release_does_not_take_a_newer_ones_bundles_away(site: Node) -> None:
    bundle = site.json("cache", "list")[0]["bundle"]
    path = written_over(site, f"{bundle}.json", lambda data: data.replace(b'"format":1', b'"format":2'))
    assert site.command("cache", "verify").exit_code == 1
    assert path.exists()
    assert site.events("bundle.quarantined") == []
    result = site.command("cache", "reindex")
    assert (result.exit_code, "REFUSED" in result.stdout) == (1, True)


def test_a_bundle_can_be_removed(site: Node) -> None:
    bundle, other = (row["bundle"] for row in site.json("cache", "list"))
    assert site.command("cache", "rm", bundle.partition("-")[2][:8]).stdout == "1 removed\n"
    assert [row["bundle"] for row in site.json("cache", "list")] == [other]
    assert [(event["bundle"], event["reason"]) for event in site.events("bundle.removed")] == [
        (bundle, "removed by root")
    ]
    assert site.command("cache", "rm", bundle).exit_code == 1


def test_what_only_reads_writes_no_events(site: Node) -> None:
    bundle = site.json("cache", "list")[0]["bundle"]
    site.command("cache", "show", bundle)
    assert site.events("hook.started") == []
    site.command("cache", "verify")
    assert len(site.events("hook.started")) == 1


def test_indexes_are_made_again(site: Node) -> None:
    (index,) = Path(site.store).rglob("index.json")
    index.unlink()
    assert [made["bundles"] for made in site.json("cache", "reindex")] == [2]
    assert index.exists()
    assert site.json("cache", "reindex", "--scope", "site") == []


def test_entries_are_promoted(site: Node) -> None:
    bundle = site.json("cache", "list")[0]["bundle"]
    assert site.command("cache", "promote", bundle, "--to", "site").exit_code == 0
    assert len(site.offered("site")) == 1
    assert site.command("cache", "promote", bundle, "--to", "site").exit_code == 1
    assert {event["into"] for event in site.events("entry.promoted")} == {"site"}
    shown = site.json("cache", "show", site.json("cache", "list", "--scope", "site")[0]["bundle"])
    assert (shown["producer"]["user"], {origin["scope"] for origin in shown["origins"].values()}) == ("a", {SCOPE})
    assert site.command("cache", "promote", shown["bundle"], "--to", SCOPE).exit_code == 2  # down
    assert site.command("cache", "promote", bundle, "nothing", "--to", "site").exit_code == 2
    gone = site.command("cache", "promote", "20200101T000000.000000Z-0123456789abcdef", "--to", "site")
    assert (gone.exit_code, "there is no bundle" in gone.stderr) == (1, True)


@pytest.mark.parametrize("command", ["rm x", "show x", "verify", "compact", "reindex", "promote x --to site"])
def test_only_root_may(site: Node, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    result = site.command("cache", *command.split())
    assert (result.exit_code, "this needs root" in result.stderr) == (2, True)


def test_many_bundles_become_one_and_nothing_is_lost(node: Node) -> None:
    first = node.publish({**one("a", b"first"), **one("b")})
    foreign = node.publish({**one("c", b"foreign"), **one("a", b"second")}, user="b", uid=2)
    node.publish({**one("c", b"late"), **one("d")})
    before = node.seen()
    assert node.json("cache", "compact")["compacted"] == 1
    after_it = node.seen()
    merged = after_it["a"]
    assert after_it == {"a": merged, "b": merged, "d": merged, "c": foreign}
    assert before["c"] == foreign
    assert merged < first
    found = manifest.decode(merged, (node.directory() / f"{merged}.json").read_bytes())
    assert found.origins["a"].bundle == first
    assert found.entries["a"]["a.nbi"].mtime_ns == 1_700_000_000_000_000_007
    assert len(list(node.directory().glob("*Z-*.json"))) == 4
    assert node.json("cache", "compact")["compacted"] == 0
    (event,) = node.events("bundle.compacted")
    assert (event["bundle"], event["entries"]) == (merged, 3)


def test_bundles_that_share_a_directory_become_one(node: Node) -> None:
    for number in range(4):
        node.publish({f"dir/f{number}": {f"dir/f{number}": b"x", f"dir/below/g{number}": b"y"}})
    assert node.json("cache", "compact")["compacted"] == 1
    assert len(set(node.seen().values())) == 1
    assert node.failures() == []


def test_a_name_that_is_a_file_here_and_a_directory_there_stops_no_compaction(node: Node) -> None:
    clashing = [node.publish({name: {name: b"x"}}) for name in ("a", "a/b")]
    for name in ("c", "d"):
        node.publish(one(name))
    before = node.seen()
    for _ in range(2):
        node.json("cache", "compact")
    after_it = node.seen()
    assert after_it.keys() == before.keys()
    assert after_it["a/b"] == clashing[1]
    assert len({bundle for entry, bundle in after_it.items() if entry != "a/b"}) == 1
    assert len(node.events("bundle.compacted")) == 1
    assert node.failures() == []


def test_one_users_bundles_keep_no_other_users_from_being_merged(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, uid in zip("abcd", (1, 1, 2, 2), strict=True):
        node.publish(one(name), scope="site", user=f"user{uid}", uid=uid)
    compact = rewrite.compact

    def fail_for_one(settings: RepackSettings, where: Namespace, merger: Merger, deadline: Deadline) -> Published:
        if merger.user == "user1":
            raise DiskFailed(what="/x", problem="no")
        return compact(settings, where, merger, deadline)

    monkeypatch.setattr(rewrite, "compact", fail_for_one)
    assert node.command("cache", "compact").exit_code == 1
    assert len(node.events("bundle.compacted")) == 1
    assert [event["code"] for event in node.failures()] == ["disk-failed"]


def test_replaced_bundles_go_after_the_grace(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        node.publish(one(name))
    node.json("cache", "compact")
    seen = node.seen()
    assert node.json("maintain", "--store")["removed"] == 0
    later = time.time() + 7200
    monkeypatch.setattr(time, "time", lambda: later)
    assert node.json("maintain", "--store")["removed"] == 3
    assert node.seen() == seen
    assert [path.suffix for path in sorted(node.directory().glob("*Z-*"))] == [".json", ".sqsh"]


@pytest.mark.threat(32)
def test_a_namespace_goes_with_its_last_bundle(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = node.publish(one("a"))
    node.publish(one("b"), scope="site")
    with node.client() as client:
        client.run_in(after(20), maintenance.remove, node.namespace(), [bundle])
    assert node.json("maintain", "--store")["swept"] == 0
    later = time.time() + 2 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    assert node.json("maintain", "--store")["swept"] == 1
    assert sorted(os.listdir(node.store / "artifacts")) == ["locks", "maintained", "site"]
    (event,) = node.events("store.swept")
    assert (event["scope"], event["namespace"], event["names"]) == ("user-1-a", "ns", ["numba"])


@pytest.mark.threat(15)
def test_what_is_unused_or_too_much_goes(node: Node) -> None:
    old, used, new = (node.publish(one(name, os.urandom(3_000_000))) for name in "abc")
    for bundle, days in ((old, 100), (used, 1), (new, 50)):
        at = time.time() - days * 86400
        os.utime(node.directory() / f"{bundle}.sqsh", (at, at))
    (node.directory() / ".tmp-n9-dead-1-0").touch()
    keep = node.policy.maintenance._replace(keep=90 * 86400, per_user=4 << 20)
    node.write(node.policy._replace(maintenance=keep))
    assert "2 removed" in node.command("maintain", "--store").stdout
    assert set(node.seen().values()) == {used}
    assert {event["bundle"]: event["reason"] for event in node.events("bundle.removed")} == {
        old: "unused for longer than maintenance.keep",
        new: "its scope is close to its quota (maintenance.per_user)",
    }
    assert node.json("maintain", "--store")["removed"] == 0

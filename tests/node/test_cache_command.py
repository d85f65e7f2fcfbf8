"""`warmstart cache` on real bundles: list, verify, compact and promote on the command line."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.lib.node import Node, one
from warmstart.host.deadline import Deadline, after
from warmstart.repack import rewrite
from warmstart.repack.rewrite import RepackSettings, UnpackFailed
from warmstart.store import maintenance, manifest
from warmstart.store.bundles import Published
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Merger

pytestmark = pytest.mark.usefixtures("capable_host")


@pytest.fixture
def site(base: Path) -> Node:
    """Yield an installation and an empty store in a directory that other uids can traverse."""
    return Node(base)


def test_many_bundles_become_one_and_nothing_is_lost(site: Node) -> None:
    first = site.publish({**one("a", b"first"), **one("b")})
    foreign = site.publish({**one("c", b"foreign"), **one("a", b"second")}, user="b", uid=2)
    site.publish({**one("c", b"late"), **one("d")})
    before = site.seen()
    assert site.json("cache", "compact")["compacted"] == 1
    after_it = site.seen()
    merged = after_it["a"]
    assert after_it == {"a": merged, "b": merged, "d": merged, "c": foreign}
    assert before["c"] == foreign
    assert merged < first
    found = manifest.decode(merged, (site.directory() / f"{merged}.json").read_bytes())
    assert found.origins["a"].bundle == first
    assert found.entries["a"]["a.nbi"].mtime_ns == 1_700_000_000_000_000_007
    assert len(list(site.directory().glob("*Z-*.json"))) == 4
    assert site.json("cache", "compact")["compacted"] == 0
    (event,) = site.events("bundle.compacted")
    assert (event["bundle"], event["entries"]) == (merged, 3)


def test_bundles_that_share_a_directory_become_one(site: Node) -> None:
    for number in range(4):
        site.publish({f"dir/f{number}": {f"dir/f{number}": b"x", f"dir/below/g{number}": b"y"}})
    assert site.json("cache", "compact")["compacted"] == 1
    assert len(set(site.seen().values())) == 1
    assert site.events("step.failed") == []


def test_a_name_that_is_a_file_here_and_a_directory_there_stops_no_compaction(site: Node) -> None:
    clashing = [site.publish({name: {name: b"x"}}) for name in ("a", "a/b")]
    for name in ("c", "d"):
        site.publish(one(name))
    before = site.seen()
    for _ in range(2):
        site.json("cache", "compact")
    after_it = site.seen()
    assert after_it.keys() == before.keys()
    assert after_it["a/b"] == clashing[1]
    assert len({bundle for entry, bundle in after_it.items() if entry != "a/b"}) == 1
    assert len(site.events("bundle.compacted")) == 1
    assert site.events("step.failed") == []


def test_one_users_bundles_keep_no_other_users_from_being_merged(site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, uid in zip("abcd", (1, 1, 2, 2), strict=True):
        site.publish(one(name), scope="site", user=f"user{uid}", uid=uid)
    compact = rewrite.compact

    def fail_for_one(settings: RepackSettings, where: Namespace, merger: Merger, deadline: Deadline) -> Published:
        if merger.user == "user1":
            raise UnpackFailed(path="/x", problem="no")
        return compact(settings, where, merger, deadline)

    monkeypatch.setattr(rewrite, "compact", fail_for_one)
    assert site.command("cache", "compact").exit_code == 1
    assert len(site.events("bundle.compacted")) == 1
    assert [event["error"]["code"] for event in site.events("step.failed")] == ["unpack-failed"]


def test_no_bundle_grows_beyond_what_comes_in_time(site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        site.publish(one(name))
    assert [row["size"] for row in site.json("cache", "list")] == [4096] * 3
    for most, compacted in ((4 << 10, 0), (12 << 10, 1)):
        monkeypatch.setattr(rewrite, "MOST_BYTES", most)
        assert site.json("cache", "compact")["compacted"] == compacted


def test_replaced_bundles_go_after_the_grace(site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        site.publish(one(name))
    site.json("cache", "compact")
    seen = site.seen()
    assert site.json("maintain", "--store")["removed"] == 0
    later = time.time() + 7200
    monkeypatch.setattr(time, "time", lambda: later)
    assert site.json("maintain", "--store")["removed"] == 3
    assert site.seen() == seen
    assert [path.suffix for path in sorted(site.directory().glob("*Z-*"))] == [".json", ".sqsh"]


@pytest.mark.threat(32)
def test_a_namespace_goes_with_its_last_bundle(site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = site.publish(one("a"))
    site.publish(one("b"), scope="site")
    with site.client() as client:
        client.run_in(after(20), maintenance.remove, site.namespace(), [bundle])
    assert site.json("maintain", "--store")["swept"] == 0
    later = time.time() + 2 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    assert site.json("maintain", "--store")["swept"] == 1
    assert sorted(os.listdir(site.store / "artifacts")) == ["id", "locks", "maintained", "site"]
    (event,) = site.events("store.swept")
    assert (event["scope"], event["namespace"], event["names"]) == ("user-1-a", "ns", ["numba"])


@pytest.mark.threat(15)
def test_what_is_unused_or_too_much_goes(site: Node) -> None:
    old, used, new = (site.publish(one(name, os.urandom(3_000_000))) for name in "abc")
    for bundle, days in ((old, 100), (used, 1), (new, 50)):
        at = time.time() - days * 86400
        os.utime(site.directory() / f"{bundle}.sqsh", (at, at))
    limited = Node(site.base, "maintenance: {keep: 90d, per_user: 4MiB}")
    assert limited.json("maintain", "--store")["removed"] == 2
    assert set(site.seen().values()) == {used}
    assert {event["bundle"]: event["reason"] for event in site.events("bundle.removed")} == {
        old: "unused for longer than maintenance.keep",
        new: "its scope is close to its quota (maintenance.per_user)",
    }

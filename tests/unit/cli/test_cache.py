"""`warmstart cache` on a store of ours: what it shows, checks and changes, and its exit statuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib import packed
from tests.lib.cache_files import NUMBA_BASE, numba_files
from tests.lib.node import SCOPE, Node, OsAs
from warmstart import session as sessions
from warmstart.store import bundles, maintenance
from warmstart.store.layout import Namespace

OTHER = NUMBA_BASE.replace("mod.outer", "mod.other")


@pytest.fixture
def site(node: Node) -> Node:
    for base in (NUMBA_BASE, OTHER):
        publish(node, base)
    return node


def publish(site: Node, base: str, scope: str = SCOPE) -> str:
    """Publish a real function of numba's under another name; return the bundle."""
    files = {name.replace(NUMBA_BASE, base): content for name, content in numba_files().items()}
    if base != NUMBA_BASE:
        files = {name: content.replace(b"mod.outer", b"mod.other") for name, content in files.items()}
    made = packed.publish(site.base, Namespace(str(site.store), scope, "numba", "ns"), {base: files})
    assert made.bundle
    return made.bundle


def written_over(site: Node, name: str, change: Callable[[bytes], bytes]) -> Path:
    """Change a published file; return its path."""
    (path,) = Path(site.store).rglob(name)
    path.chmod(0o600)
    path.write_bytes(change(path.read_bytes()))
    return path


def test_bundles_are_listed(site: Node) -> None:
    first, second = site.json("cache", "list")
    assert (first["scope"], first["profile"], first["namespace"], first["entries"]) == (SCOPE, "numba", "ns", 1)
    assert first["bundle"] != second["bundle"]
    for only in (("--scope", "site"), ("--profile", "triton"), ("--namespace", "other")):
        assert site.command("cache", "list", *only).exit_code == 1
    assert site.command("cache", "list", "--scope", SCOPE, "--profile", "numba").exit_code == 0
    assert site.command("cache", "list", "--user", "nobody").exit_code == 1
    head, row, _ = site.command("cache", "list").stdout.splitlines()
    assert head.split() == ["ID", "PROFILE", "ENTRIES", "SIZE", "USER", "NAMESPACE", "IMAGE"]
    assert row.split()[0] == first["bundle"].partition("-")[2][:12]
    assert site.json("cache", "show", row.split()[0])["bundle"] == first["bundle"]


def test_a_bundle_is_shown(site: Node) -> None:
    bundle = site.json("cache", "list")[0]["bundle"]
    found = site.json("cache", "show", bundle)
    assert (found["producer"]["user"], list(found["entries"])) in (("a", [NUMBA_BASE]), ("a", [OTHER]))
    assert "producer.node:" in site.command("cache", "show", bundle).stdout
    gone = site.command("cache", "show", "20200101T000000.000000Z-0123456789abcdef")
    assert (gone.exit_code, "there is no bundle" in gone.stderr) == (1, True)


def test_declared_files_are_shown_as_sha256sum_takes_them(node: Node) -> None:
    where = Namespace(str(node.store), SCOPE, "files", "ns")
    made = packed.publish(node.base, where, {"data": {"data": b"x"}})
    assert made.bundle
    sha256 = packed.draft({"data": {"data": b"x"}}).entries["data"]["data"].sha256
    assert f"{sha256}  data\n" in node.command("cache", "show", made.bundle).stdout


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
        (".json", lambda data: data.replace(b'.nbi":[', b'.nbi":[1')),
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


def test_bundles_become_one(site: Node) -> None:
    before = sorted(site.offered())
    assert site.json("cache", "compact", "--namespace", "other")["compacted"] == 0
    assert site.json("cache", "compact")["compacted"] == 1
    assert sorted(site.offered()) == before
    (event,) = site.events("bundle.compacted")
    assert (event["entries"], len(event["replaces"])) == (2, 2)
    assert site.command("cache", "compact").stdout == "nothing to do\n"


def test_what_the_policy_does_not_keep_goes(site: Node) -> None:
    (left,) = Path(site.store).rglob("index.json")
    (left.parent / ".tmp-n9-dead-1-0").touch()
    site.write(site.policy._replace(maintenance=site.policy.maintenance._replace(per_user=1)))
    assert "2 removed" in site.command("maintain", "--store").stdout
    assert site.offered() == []
    assert len(site.events("bundle.removed")) == 2
    assert site.json("maintain", "--store")["removed"] == 0


def test_a_bundle_can_be_removed(site: Node) -> None:
    bundle, other = (row["bundle"] for row in site.json("cache", "list"))
    assert site.command("cache", "rm", bundle.partition("-")[2][:8]).stdout == "1 removed\n"
    assert [row["bundle"] for row in site.json("cache", "list")] == [other]
    assert [(event["bundle"], event["reason"]) for event in site.events("bundle.removed")] == [
        (bundle, "removed by root")
    ]
    assert site.command("cache", "rm", bundle).exit_code == 1


def test_a_prefix_stands_for_a_bundle_if_only_one_has_it(site: Node) -> None:
    bundle = site.json("cache", "list")[0]["bundle"]
    assert site.json("cache", "show", bundle.partition("-")[2][:6])["bundle"] == bundle
    for text, problem in (("20", "no bundle 20"), ("202", "no bundle"), (bundle[:7], "more than one bundle")):
        found = site.command("cache", "show", text)
        assert (found.exit_code, problem in found.stderr) == (1, True)


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


@pytest.mark.parametrize(
    "command",
    [
        ("rm", "x"),
        ("show", "x"),
        ("verify",),
        ("compact",),
        ("reindex",),
        ("promote", "x", "--to", "site"),
    ],
)
def test_only_root_may(site: Node, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    result = site.command("cache", *command)
    assert (result.exit_code, "this needs root" in result.stderr) == (2, True)

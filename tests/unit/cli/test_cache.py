"""`warmstart cache` on a store of ours: what it shows, checks and changes, and its exit statuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib import packed
from tests.lib.cache_files import NUMBA_BASE, numba_files
from tests.lib.node import SCOPE, Node, OsAs
from warmstart import session as sessions
from warmstart.cli.cache import NamespaceFilter
from warmstart.host.deadline import after
from warmstart.store import bundles, maintenance
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle

OTHER = NUMBA_BASE.replace("mod.outer", "mod.other")


@pytest.fixture
def site(node: Node) -> Node:
    """Give a store with two bundles of one user."""
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


def damage(site: Node, bundle: str) -> None:
    """Change a bundle's bytes."""
    (path,) = Path(site.store).rglob(f"{bundle}.sqsh")
    path.chmod(0o600)
    path.write_bytes(bytes(path.stat().st_size))


def test_bundles_are_listed(site: Node) -> None:
    """All, or those of a scope, profile or namespace; 1 where there are none."""
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
    """With who made it and what is in it."""
    bundle = site.json("cache", "list")[0]["bundle"]
    found = site.json("cache", "show", bundle)
    assert (found["producer"]["user"], list(found["entries"])) in (("a", [NUMBA_BASE]), ("a", [OTHER]))
    assert "producer.node:" in site.command("cache", "show", bundle).stdout
    gone = site.command("cache", "show", "20200101T000000.000000Z-0123456789abcdef")
    assert (gone.exit_code, "there is no bundle" in gone.stderr) == (1, True)


def test_declared_files_are_shown_as_sha256sum_takes_them(node: Node) -> None:
    """A user compares them with his own."""
    where = Namespace(str(node.store), SCOPE, "files", "ns")
    made = packed.publish(node.base, where, {"data": {"data": b"x"}})
    assert made.bundle
    sha256 = packed.draft({"data": {"data": b"x"}}).entries["data"]["data"].sha256
    assert f"{sha256}  data\n" in node.command("cache", "show", made.bundle).stdout


def test_a_bundle_that_supersedes_is_shown_and_its_marks_outlive_it(node: Node) -> None:
    """What takes over its marks is whole without a file in it, and is compacted with the rest."""
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


def test_a_damaged_bundle_is_quarantined(site: Node) -> None:
    """At once; the whole ones stay."""
    assert site.json("cache", "verify")["verified"] == 2
    bundle = site.json("cache", "list")[0]["bundle"]
    damage(site, bundle)
    result = site.command("cache", "verify")
    assert (result.exit_code, "2 verified, 1 damaged" in result.stdout) == (1, True)
    assert bundle not in [one["bundle"] for one in site.json("cache", "list")]
    assert [event["bundle"] for event in site.events("bundle.quarantined")] == [bundle]
    assert site.command("cache", "verify", bundle).exit_code == 1  # it is not there any more


def test_bundles_become_one(site: Node) -> None:
    """What jobs are offered is the same; the old ones are listed until nobody reads them."""
    before = sorted(site.offered())
    assert site.json("cache", "compact", "--namespace", "other")["compacted"] == 0
    assert site.json("cache", "compact")["compacted"] == 1
    assert sorted(site.offered()) == before
    (event,) = site.events("bundle.compacted")
    assert (event["entries"], len(event["replaces"])) == (2, 2)
    assert site.command("cache", "compact").stdout == "nothing to do\n"


def test_what_the_policy_does_not_keep_goes(site: Node) -> None:
    """And what dead publishers left."""
    (left,) = Path(site.store).rglob("index.json")
    (left.parent / ".tmp-n9-dead-1-0").touch()
    site.write(site.policy._replace(maintenance=site.policy.maintenance._replace(per_user=1)))
    assert "2 removed" in site.command("maintain", "--store").stdout
    assert site.offered() == []
    assert len(site.events("bundle.removed")) == 2
    assert site.json("maintain", "--store")["removed"] == 0


def test_a_bundle_can_be_removed(site: Node) -> None:
    """By a prefix of its hash, with who did it in the audit log; the other one stays."""
    bundle, other = (row["bundle"] for row in site.json("cache", "list"))
    assert site.command("cache", "rm", bundle.partition("-")[2][:8]).stdout == "1 removed\n"
    assert [row["bundle"] for row in site.json("cache", "list")] == [other]
    assert [(event["bundle"], event["reason"]) for event in site.events("bundle.removed")] == [
        (bundle, "removed by root")
    ]
    assert site.command("cache", "rm", bundle).exit_code == 1


def test_a_prefix_stands_for_a_bundle_if_only_one_has_it(site: Node) -> None:
    """Six characters of the id or of its hash at least."""
    bundle = site.json("cache", "list")[0]["bundle"]
    assert site.json("cache", "show", bundle.partition("-")[2][:6])["bundle"] == bundle
    for text, problem in (("20", "no bundle 20"), ("202", "no bundle"), (bundle[:7], "more than one bundle")):
        found = site.command("cache", "show", text)
        assert (found.exit_code, problem in found.stderr) == (1, True)


def test_what_only_reads_writes_no_events(site: Node) -> None:
    """Who lists the store every minute does not fill the audit log."""
    bundle = site.json("cache", "list")[0]["bundle"]
    site.command("cache", "show", bundle)
    assert site.events("hook.started") == []
    site.command("cache", "verify")
    assert len(site.events("hook.started")) == 1


def test_indexes_are_made_again(site: Node) -> None:
    """Manifests that can't be used are counted, and status 1 says so."""
    (index,) = Path(site.store).rglob("index.json")
    index.unlink()
    assert [made["bundles"] for made in site.json("cache", "reindex")] == [2]
    assert index.exists()
    assert site.json("cache", "reindex", "--scope", "site") == []
    manifest = next(path for path in index.parent.glob("*Z-*.json"))
    manifest.chmod(0o600)
    manifest.write_text('{"format": 2}')
    result = site.command("cache", "reindex")
    assert (result.exit_code, "REFUSED" in result.stdout) == (1, True)


def test_entries_are_promoted(site: Node) -> None:
    """Into a more trusted scope, where others find them; they keep who made them. Again there is nothing to do."""
    bundle = site.json("cache", "list")[0]["bundle"]
    assert site.command("cache", "promote", bundle, "--to", "site").exit_code == 0
    assert len(site.offered("site")) == 1
    assert site.command("cache", "promote", bundle, "--to", "site").exit_code == 1
    assert {event["into"] for event in site.events("entry.promoted")} == {"site"}
    gone = site.command("cache", "promote", "20200101T000000.000000Z-0123456789abcdef", "--to", "site")
    assert (gone.exit_code, "there is no bundle" in gone.stderr) == (1, True)


def test_one_host_maintains_at_a_time(site: Node) -> None:
    """Who comes second is told."""
    with site.client() as other:
        assert other.lock(after(5))
        result = site.command("cache", "compact")
    assert (result.exit_code, "another maintenance run" in result.stderr) == (2, True)


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
    """Nobody else reads the store."""
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    result = site.command("cache", *command)
    assert (result.exit_code, "this needs root" in result.stderr) == (2, True)


@given(st.lists(st.sampled_from([None, "a", "b"]), min_size=3, max_size=3), st.lists(st.sampled_from("ab"), min_size=3))
def test_a_filter_is_of_all_its_parts(only: list[str | None], values: list[str]) -> None:
    """None is any."""
    chosen = NamespaceFilter(*only)
    expected = all(part in (None, value) for part, value in zip(only, values, strict=False))
    assert chosen.matches(Namespace("/store", *values[:3])) is expected
    bundle = Bundle._make([*values[:3], *[""] * (len(Bundle._fields) - 3)])
    assert chosen.matches(bundle) is expected
    assert chosen.select([bundle], []) == ([bundle] if expected else [])
    assert chosen.select([bundle], ["other"]) == []

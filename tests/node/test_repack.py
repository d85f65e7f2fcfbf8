"""Compaction and promotion by real mounts: the new bundle has what readers took, and nothing else."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.lib.node import Node, one
from tests.lib.packed import MTIME_NS
from warmstart.host.namespaces import mounts

pytestmark = pytest.mark.usefixtures("capable_host", "busy")


@pytest.fixture
def node(base: Path) -> Node:
    return Node(base)


def content(node: Node, bundle: str, scope: str = "user-1-a") -> dict[str, bytes]:
    """Return the files that a bundle holds."""
    top = node.base / f"content-{bundle[:8]}"
    argv = ["/usr/bin/unsquashfs", "-no-progress", "-quiet", "-dest", str(top)]
    subprocess.run([*argv, str(node.directory(scope) / f"{bundle}.sqsh")], check=True, capture_output=True)
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if not path.is_dir()}


def is_clean(node: Node) -> bool:
    """Return whether nothing is mounted or left where bundles are repacked."""
    left = [*Path(node.installation.var).glob("*/maintenance/*")]
    return not left and not [mount for mount in mounts() if mount.point.startswith(str(node.base))]


def test_many_bundles_become_one_and_nothing_is_lost(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    first = node.publish({**one("a", b"first"), **one("b")})
    foreign = node.publish({**one("c", b"foreign"), **one("a", b"second")}, user="b", uid=2)
    node.publish({**one("c", b"late"), **one("d")})
    before = node.seen()
    assert (before["a"], before["b"]) == (foreign, first)
    assert node.json("cache", "compact")["compacted"] == 1
    after_it = node.seen()
    merged = after_it["b"]
    assert after_it == {"a": foreign, "b": merged, "c": merged, "d": merged}
    assert content(node, merged) == {"b.nbi": b"x", "c.nbi": b"late", "d.nbi": b"x"}
    files = node.json("cache", "show", merged)["entries"]
    assert (sorted(files), files["c"]["c.nbi"][2]) == (["b", "c", "d"], MTIME_NS)
    assert len(list(node.directory().glob("*.sqsh"))) == 4  # readers of the listing before have them
    assert node.json("cache", "compact")["compacted"] == 0
    (event,) = node.events("bundle.compacted")
    assert (event["bundle"], event["entries"]) == (merged, 3)
    assert is_clean(node)
    later = time.time() + 4 * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    node.json("maintain", "--store")
    assert node.seen() == after_it
    assert {path.stem for path in node.directory().glob("*.sqsh")} == {merged, foreign}
    assert node.problems() == []


def test_bundles_that_share_a_directory_become_one(node: Node) -> None:
    for number in range(4):
        node.publish({f"dir/f{number}": {f"dir/f{number}": b"%d" % number, f"dir/below/g{number}": b"y"}})
    assert node.json("maintain", "--store")["compacted"] == 1
    (merged,) = {*node.seen().values()}
    assert content(node, merged)["dir/f2"] == b"2"
    assert node.failures() == []


def test_a_name_that_is_a_file_here_and_a_directory_there_stops_no_compaction(node: Node) -> None:
    clashing = [node.publish({name: {name: b"x"}}) for name in ("a", "a/b")]
    for name in ("c", "d"):
        node.publish(one(name))
    for _ in range(2):
        node.json("cache", "compact")
    seen = node.seen()
    assert [seen["a"], seen["a/b"]] == clashing
    assert len({seen["c"], seen["d"]}) == 1
    assert len(node.events("bundle.compacted")) == 1
    assert node.failures() == []


def test_a_bundle_that_is_damaged_keeps_no_other_user_from_being_merged(node: Node) -> None:
    broken = node.publish(one("a", os.urandom(5000)))
    node.publish(one("b"))
    for name in ("c", "d"):
        node.publish(one(name), user="b", uid=2)
    path = node.directory() / f"{broken}.sqsh"
    data = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert node.command("cache", "compact").exit_code == 1
    assert [event["code"] for event in node.failures()] == ["bundle-damaged"]
    assert len(node.events("bundle.compacted")) == 1
    assert is_clean(node)


def test_entries_are_promoted(node: Node) -> None:
    bundle = node.publish({**one("a", b"chosen"), **one("b")})
    assert node.command("cache", "promote", bundle, "a", "--to", "site").exit_code == 0
    (made,) = node.seen("site").values()
    assert content(node, made, "site") == {"a.nbi": b"chosen"}
    assert node.json("cache", "list", "--scope", "site")[0]["user"] == "a"
    assert node.json("cache", "show", made)["facts"] == {"cpu": "x"}
    assert node.command("cache", "promote", bundle, "a", "--to", "site").exit_code == 1
    assert node.command("cache", "promote", bundle, "--to", "site").exit_code == 0
    assert node.seen("site")["a"] == made
    assert [event["into"] for event in node.events("entry.promoted")] == ["site", "site"]
    assert is_clean(node)
    assert node.command("cache", "promote", made, "--to", "user-1-a").exit_code == 2  # down
    assert node.command("cache", "promote", bundle, "nothing", "--to", "site").exit_code == 2
    gone = node.command("cache", "promote", "0123456789ab", "--to", "site")
    assert (gone.exit_code, "there is no bundle" in gone.stderr) == (1, True)

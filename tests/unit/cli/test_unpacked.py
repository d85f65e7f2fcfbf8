"""`warmstart images unpacked` and `unpack`: what lies on this host, whose, and how people have an image unpacked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.lib.bundles import ASKER
from tests.lib.node import NODE, Node
from tests.lib.superblocks import image
from warmstart import shelf
from warmstart.cli import unpacked as command
from warmstart.images import unpacks
from warmstart.images.choice import recipe
from warmstart.images.unpacked import ImageKey, shelf_of
from warmstart.images.unpacking import About
from warmstart.images.unpacks import UNPACKS, UnpackRequest
from warmstart.queue import Queue

HEX = "ab" * 32


@pytest.fixture
def site(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return a site with an image in the store, and a node with a shelf on which no program runs."""
    kind = f"{os.uname().machine}.{recipe(node.policy.images.importer)}"
    (node.store / "images").mkdir()
    (node.store / f"images/{HEX}.{kind}.sqsh").write_bytes(image())
    (node.base / "shelf").mkdir()
    paths = node.policy.paths._replace(shelf=str(node.base / "shelf"))
    node.write(node.policy._replace(paths=paths))
    os.makedirs(f"{node.paths.state}/7", mode=0o700)
    monkeypatch.setattr(Queue, "start_due", lambda _: None)
    monkeypatch.setattr(command, "require_root", lambda _: None)
    return node


def key(site: Node) -> ImageKey:
    (path,) = (site.store / "images").glob("*.sqsh")
    return ImageKey(path.stem)


def make(site: Node) -> None:
    place = Path(shelf_of(site.policy, NODE), key(site).tree)
    (place / "tree").mkdir(parents=True)
    about = About("reg.io/a:1", *key(site), "ws-alice", 5001, 3, 99, 1e9, 40)
    (place / "about.json").write_text(json.dumps(about._asdict()))


def test_what_lies_on_the_node_is_listed(site: Node) -> None:
    assert site.json("images", "unpacked") == []
    make(site)
    queue = Queue(site.paths, UNPACKS)
    queue.add("5001", "waiting", UnpackRequest("reg.io/b:1", "b", "", ASKER))
    queue.add("5001", "failed", UnpackRequest("reg.io/c:1", "c", "team", ASKER, "too large"))
    there, waiting, failed = sorted(site.json("images", "unpacked"), key=lambda row: str(row["reference"]))
    assert (there["state"], there["user"], there["bytes"], there["jobs"]) == ("unpacked", "ws-alice", 99, "")
    shelf.note_held(site.paths.state, 7, key(site).tree)
    (there, *_) = site.json("images", "unpacked")
    assert (there["state"], there["jobs"]) == ("in use", "7")
    assert "in use" in site.command("images", "unpacked").stdout
    assert (waiting["state"], failed["state"], failed["reason"]) == ("waiting", "failed", "too large")


def test_an_image_is_unpacked_by_command(site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacks, "PAUSE_S", 0.0)
    Queue(site.paths, UNPACKS).add("5001", key(site).tree, UnpackRequest("reg.io/a:1", *key(site), ASKER, "no room"))
    monkeypatch.setattr(Queue, "start_due", lambda _: make(site))
    done = site.command("images", "unpack", HEX)
    assert (done.exit_code, done.stdout) == (0, f"{key(site).image}: unpacked\n")
    (item,) = Queue(site.paths, UNPACKS).all()
    assert item.owner == "0"


@pytest.mark.real_time
def test_what_does_not_come_in_time_is_told(site: Node) -> None:
    late = site.command("images", "unpack", "--within", "1s", HEX)
    assert (late.exit_code, late.stderr.strip()) == (1, f"warmstart: {NODE}: {unpacks.TOO_LONG}")
    assert site.command("images", "unpack", "--within", "soon", HEX).exit_code == 2
    assert site.command("images", "unpack", "ef" * 32).exit_code == 1

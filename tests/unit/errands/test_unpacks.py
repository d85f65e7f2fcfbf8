"""An errand to unpack an image: who hears what became of it, and at which priority it is done."""

from __future__ import annotations

import os
import signal

import pytest

from tests.lib.bundles import ASKER
from tests.lib.node import NODE, Node
from warmstart.entry import background
from warmstart.errand import Errands
from warmstart.host import process
from warmstart.images import unpacking
from warmstart.images.unpacked import ImageKey
from warmstart.images.unpacking import About
from warmstart.images.unpacks import UNPACKS, ImageNotUnpacked, UnpackRequest

KEY = ImageKey("ab.x86_64.oci2")
ABOUT = About("reg.io/a:1", *KEY, "ws-alice", 5001, 3, 99, 1e9, 40)
REQUEST = UnpackRequest("reg.io/a:1", *KEY, ASKER)


@pytest.fixture
def site(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return a node where an image waits to be unpacked."""
    os.makedirs(node.paths.state, mode=0o700)
    monkeypatch.setattr(process, "set_idle", lambda _: None)
    monkeypatch.setattr(os, "setpgid", lambda *_: None)
    assert Errands(node.paths, UNPACKS).add("5001", KEY.tree, REQUEST)
    return node


def run(site: Node) -> None:
    assert background.main(site.installation.prefix, [UNPACKS.name, NODE, KEY.tree]) == 0


@pytest.mark.parametrize(
    ("error", "told"),
    [(ImageNotUnpacked(image="a", problem="too large"), "too large"), (OSError(28, "No space left"), "No space left")],
)
def test_what_failed_stays_and_says_why(
    site: Node, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    seen = []

    def unpack(request: UnpackRequest, **_: object) -> About:
        (errand,) = Errands(site.paths, UNPACKS).all()
        waiting = Errands(site.paths, UNPACKS).read(errand, UnpackRequest)
        seen.append((request.problem, waiting and waiting.problem))
        raise error

    monkeypatch.setattr(unpacking, "unpack", unpack)
    for _ in range(2):
        run(site)
        (errand,) = Errands(site.paths, UNPACKS).all()
        request = Errands(site.paths, UNPACKS).read(errand, UnpackRequest)
        assert request
        assert request.problem == told
    assert seen == [("", "")] * 2
    assert [event["attempt"] for event in site.events("image.unpack-failed")] == [1, 2]


@pytest.mark.report
def test_what_is_done_is_not_ended_as_if_withdrawn(site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    drop = Errands.drop

    def is_seen(errands: Errands, key: str, but: str = "") -> None:
        drop(errands, key, but)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(unpacking, "unpack", lambda *_, **__: ABOUT)
    monkeypatch.setattr(Errands, "drop", is_seen)
    former = signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    try:
        run(site)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert ended == []

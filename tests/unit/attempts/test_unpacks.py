"""An item to unpack an image: how its process ends."""

from __future__ import annotations

import os
import signal

import pytest

from tests.lib.bundles import ASKER
from tests.lib.node import NODE, Node
from warmstart.entry import background
from warmstart.host import process
from warmstart.images import unpacking
from warmstart.images.unpacked import ImageKey
from warmstart.images.unpacking import About
from warmstart.images.unpacks import UNPACKS, UnpackRequest
from warmstart.queue import Queue

KEY = ImageKey("ab.x86_64.oci2")
ABOUT = About("reg.io/a:1", *KEY, "ws-alice", 5001, 3, 99, 1e9, 40)


@pytest.mark.report
def test_what_is_done_is_not_ended_as_if_withdrawn(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its item goes before its process does, and whoever began it may look in between."""
    os.makedirs(node.paths.state, mode=0o700)
    monkeypatch.setattr(process, "set_idle", lambda _: None)
    monkeypatch.setattr(os, "setpgid", lambda *_: None)
    assert Queue(node.paths, UNPACKS).add("5001", KEY.tree, UnpackRequest("reg.io/a:1", *KEY, ASKER))
    ended = []
    drop = Queue.drop

    def is_seen(queue: Queue, key: str) -> None:
        drop(queue, key)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(unpacking, "unpack", lambda *_, **__: ABOUT)
    monkeypatch.setattr(Queue, "drop", is_seen)
    former = signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    try:
        assert background.main(node.installation.prefix, [UNPACKS.name, NODE, KEY.tree]) == 0
    finally:
        signal.signal(signal.SIGTERM, former)
    assert ended == []

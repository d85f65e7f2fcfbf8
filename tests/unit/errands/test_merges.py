"""What the nodes of runs have handed in waits in the store. tests/node/test_parts.py merges real bundles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.bundles import draft
from tests.lib.node import NODE, Node
from warmstart.entry import background
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.store import parts
from warmstart.store.layout import Namespace
from warmstart.store.parts import PARTS, RunParts


@pytest.fixture
def site(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return an installation with a node that hooks have used."""
    monkeypatch.setattr(process, "be_idle", lambda: None)
    os.makedirs(node.paths.state, mode=0o700)
    return node


def test_a_run_is_merged_when_its_nodes_are_over(site: Node) -> None:
    """Not before. What cannot be used is dropped, and nothing of the run stays."""
    run = RunParts(str(site.store), "64201.c.7.0")
    fd = os.memfd_create("part")
    os.write(fd, b"no squashfs")
    with site.client() as store:
        where = Namespace(run.store, "user-64201-a", "numba", "ns")
        store.hand_in(run, where, fd, draft("a"), "n[1-2]", after(20))
        store.run_in(after(20), parts.finish, run, "n1", "n[1-2]")
        os.close(fd)
        assert background.main(site.installation.prefix, [PARTS, NODE]) == 0
        assert site.events("bundle.dropped") == []
        store.run_in(after(20), parts.finish, run, "n2", "n[1-2]")
    (manifest,) = Path(run.path).glob("*.json")
    manifest.chmod(0o600)
    manifest.write_text("{")
    assert background.main(site.installation.prefix, [PARTS, NODE]) == 0
    assert [event["run"] for event in site.events("bundle.dropped")] == [run.name]
    assert not os.path.exists(run.path)

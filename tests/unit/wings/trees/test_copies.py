"""Packed copies of trees in the store: what is known of them, and how they go."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.lib.node import NODE, SCOPE, Node
from tests.lib.wings.trees.asked import ask, offer_trees, packs
from warmstart.audit.journal import Journal
from warmstart.errors import WarmstartError
from warmstart.wings.trees import copies
from warmstart.wings.trees.copies import TreeCopy


@pytest.fixture
def tree(node: Node, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tree of which there is a copy."""
    path = offer_trees(node, monkeypatch)
    os.mkfifo(path / "fifo")
    ask(node, path, "pyvenv.cfg")
    packs(node)
    return path


def known(site: Node) -> list[TreeCopy]:
    """Return the copies, of which none fails."""
    failed: list[WarmstartError] = []
    with site.client() as store:
        found = list(copies.copies(store, failed.append))
    assert failed == []
    return found


def test_what_is_known_of_a_copy(node: Node, tree: Path) -> None:
    """The file that the job named is a part of it, since nobody else can look at the tree as the job did."""
    (copy,) = known(node)
    assert (copy.tree, copy.marker, copy.scope, copy.user, copy.node) == (
        str(tree), "pyvenv.cfg", SCOPE, "ws-alice", NODE,
    )  # fmt: skip
    assert (copy.files, copy.bytes, copy.left_out, copy.examples) == (3, 1, 1, "fifo: neither file nor directory")
    assert time.time() - 100 < copy.packed < time.time() + 100
    assert copy.size > copy.bytes


def test_a_copy_is_taken_out_of_use_once(node: Node, tree: Path) -> None:
    """Nobody is offered it any more; the tree, which has not changed, is packed anew when a job asks."""
    (copy,) = known(node)
    journal = Journal(node.paths.journal, {"hook": "trees", "run_id": "r", "node": NODE})
    with node.client() as store:
        assert copies.take_out(store, journal, copy, "why")
        assert not copies.take_out(store, journal, copy, "why")
    (event,) = node.events("bundle.removed")
    assert (event["tree"], event["bundle"], event["reason"]) == (str(tree), copy.bundle, "why")
    assert known(node) == []
    ask(node, tree, "pyvenv.cfg")
    packs(node)
    (anew,) = known(node)
    assert (anew.namespace, anew.stamp) == (copy.namespace, copy.stamp)
    assert anew.bundle != copy.bundle

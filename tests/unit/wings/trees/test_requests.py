"""Trees that wait to be packed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from warmstart.errand import KEPT_S, Errand, Errands
from warmstart.paths import NodePaths
from warmstart.wings.trees import requests
from warmstart.wings.trees.requests import PACKS, TreeRequest


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    return NodePaths(str(tmp_path), str(tmp_path))


def request(tree: str = "/t", uid: int = 1) -> TreeRequest:
    return TreeRequest(tree, "", f"user-{uid}-u", "u", uid, uid, "c", 7, "n1")


def tried(paths: NodePaths, item: TreeRequest, ago_s: float = 0.0) -> None:
    due = int(time.time() - ago_s + PACKS.backoff_s)
    Errands(paths, PACKS).put(Errand(str(item.uid), due, 1, item.key), item)


def due(paths: NodePaths) -> set[tuple[str, int]]:
    return {(item.request.tree, item.request.uid) for item in requests.due(paths)}


@pytest.mark.threat(54)
def test_each_user_may_have_one_tree_packed(paths: NodePaths) -> None:
    """Of a tree that many share, too: each user's process may try, and nobody waits for another's that is killed."""
    for tree, uid in (("/shared", 1), ("/own", 1), ("/shared", 2)):
        assert requests.ask(paths, request(tree, uid=uid)._replace(scope="site"))
    assert due(paths) == {("/shared", 1), ("/own", 1), ("/shared", 2)}
    killed = request("/shared")._replace(scope="site", problem="worker-died")
    tried(paths, killed)
    assert due(paths) == {("/own", 1), ("/shared", 2)}
    tried(paths, killed._replace(refused=True))  # by the tree, not by its user's process
    assert due(paths) == {("/own", 1)}


def test_a_request_that_is_about_to_be_forgotten_is_made_anew(paths: NodePaths) -> None:
    tried(paths, request()._replace(problem="it has more"), ago_s=KEPT_S + 5)
    asked = requests.ask(paths, request())
    assert asked is not None
    assert (asked.request.problem, len(requests.due(paths))) == ("", 1)


def test_a_damaged_request_goes(paths: NodePaths) -> None:
    requests.ask(paths, request())
    errands = Errands(paths, PACKS)
    Path(errands.directory, errands.all()[0].name).write_text("{")
    assert requests.due(paths) == []
    assert errands.all() == []

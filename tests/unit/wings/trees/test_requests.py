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
    """Return a request of a user's."""
    return TreeRequest(tree, "", f"user-{uid}-u", "u", uid, uid, "c", 7, "n1")


def tried(paths: NodePaths, item: TreeRequest, ago_s: float = 0.0) -> None:
    """Say that one attempt was made."""
    due = int(time.time() - ago_s + PACKS.backoff_s)
    Errands(paths, PACKS).put(Errand(str(item.uid), due, 1, item.key), item)


def due(paths: NodePaths) -> set[tuple[str, int]]:
    """Return tree and user of what is due."""
    return {(item.request.tree, item.request.uid) for item in requests.due(paths)}


def test_a_tree_is_packed_under_the_job_that_asked_first(paths: NodePaths) -> None:
    assert requests.ask(paths, request()._replace(job_id=1))
    assert requests.ask(paths, request()._replace(job_id=2))
    assert [item.request.job_id for item in requests.due(paths)] == [1]


@pytest.mark.threat(50)
def test_one_who_asks_for_too_many_does_not_keep_others_from_asking(paths: NodePaths) -> None:
    for number in range(PACKS.most):
        assert requests.ask(paths, request(f"/{number}"))
    assert not requests.ask(paths, request("/more"))
    assert requests.ask(paths, request("/other", uid=2))
    assert ("/other", 2) in due(paths)


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


@pytest.mark.threat(54)
def test_what_the_tree_refused_to_others_is_told_until_it_is_tried_again(paths: NodePaths) -> None:
    """To each user who asks for it, with the time; not when its cause may be gone."""
    refused = request("/shared")._replace(scope="site", refused=True, problem="a: others may write it")
    mine = refused._replace(uid=2, refused=False, problem="")
    for ago_s, problem in ((5, "a: others may write it"), (5, "a: others may write it"), (PACKS.backoff_s + 5, "")):
        tried(paths, refused, ago_s=ago_s)
        asked = requests.ask(paths, mine)
        assert asked is not None
        assert (asked.request.problem, asked.next > time.time()) == (problem, bool(problem))


def test_a_damaged_request_goes(paths: NodePaths) -> None:
    requests.ask(paths, request())
    errands = Errands(paths, PACKS)
    Path(errands.directory, errands.all()[0].name).write_text("{")
    assert requests.due(paths) == []
    assert errands.all() == []

"""Trees that wait to be packed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from warmstart.paths import NodePaths
from warmstart.trees import requests
from warmstart.trees.requests import MOST_PER_USER, TreeRequest


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    """Return the directories of a node."""
    return NodePaths(str(tmp_path), str(tmp_path))


def request(tree: str = "/t", uid: int = 1, asked: float = 0.0) -> TreeRequest:
    """Return a request of a user's."""
    return TreeRequest(tree, "", f"user-{uid}-u", "u", uid, uid, "c", 7, "n1", asked or time.time())


def write(paths: NodePaths, item: TreeRequest) -> None:
    """Write a request as `ask` does."""
    os.makedirs(paths.trees, exist_ok=True)
    fd = os.open(paths.trees, os.O_RDONLY)
    requests.write(fd, item)
    os.close(fd)


def test_a_tree_is_asked_for_once(paths: NodePaths) -> None:
    """The job that asked first is the one whose labels the pack bears."""
    assert requests.ask(paths, request()._replace(job_id=1))
    assert requests.ask(paths, request()._replace(job_id=2))
    assert [item.job_id for item in requests.due(paths)] == [1]


@pytest.mark.threat(50)
def test_users_have_a_bound(paths: NodePaths) -> None:
    """One who asks for too many does not keep others from asking."""
    for number in range(MOST_PER_USER):
        assert requests.ask(paths, request(f"/{number}", asked=time.time() - 100 + number))
    assert not requests.ask(paths, request("/more"))
    assert requests.ask(paths, request("/other", uid=2))
    assert [item.tree for item in requests.due(paths)][-3:] == ["/6", "/7", "/other"]


@pytest.mark.threat(54)
def test_each_user_may_have_one_tree_packed(paths: NodePaths) -> None:
    """Of a tree that many share, too: each user's process may try, and nobody waits for another's that is killed."""
    now = time.time()
    for uid, asked in ((1, now - 9), (1, now - 8), (2, now - 7)):
        tree = "/shared" if asked != now - 8 else "/own"
        assert requests.ask(paths, request(tree, uid=uid, asked=asked)._replace(scope="site"))
    assert [(item.tree, item.uid) for item in requests.due(paths)] == [("/shared", 1), ("/own", 1), ("/shared", 2)]
    killed = requests.due(paths)[0]._replace(attempts=1, tried=now, problem="worker-died")
    write(paths, killed)
    assert [item.uid for item in requests.due(paths)] == [1, 2]
    write(paths, killed._replace(refused=True))  # by the tree, not by its user's process
    assert [(item.tree, item.uid) for item in requests.due(paths)] == [("/own", 1)]


def test_a_failed_pack_waits_longer_each_time(paths: NodePaths) -> None:
    """And is forgotten a day after the last attempt."""
    now = time.time()
    write(paths, request()._replace(attempts=2, tried=now - 2 * requests.FIRST_BACKOFF_S + 5))
    assert requests.due(paths) == []
    write(paths, request()._replace(attempts=2, tried=now - 2 * requests.FIRST_BACKOFF_S - 5))
    assert len(requests.due(paths)) == 1
    write(paths, request(asked=now - 2 * requests.KEPT_S)._replace(tried=now - requests.KEPT_S - 1))
    assert requests.due(paths) == []
    assert os.listdir(paths.trees) == []


def test_an_old_request_is_made_anew(paths: NodePaths) -> None:
    """One that is about to be forgotten would not be packed."""
    write(paths, request(asked=time.time() - 2 * requests.KEPT_S)._replace(problem="it has more"))
    asked = requests.ask(paths, request())
    assert asked is not None
    assert (asked.problem, len(requests.due(paths))) == ("", 1)


@pytest.mark.threat(54)
def test_what_the_tree_refused_to_others_is_told_until_it_is_tried_again(paths: NodePaths) -> None:
    """To each user who asks for it, with the time; not when its cause may be gone."""
    now = time.time()
    refused = request("/shared")._replace(scope="site", refused=True, problem="a: others may write it", attempts=1)
    mine = refused._replace(uid=2, refused=False, problem="", attempts=0)
    for _ in range(2):
        write(paths, refused._replace(tried=now - 5))
        asked = requests.ask(paths, mine)
        assert asked is not None
        assert (asked.problem, asked.is_due()) == ("a: others may write it", False)
    write(paths, refused._replace(tried=now - requests.FIRST_BACKOFF_S - 5))
    asked = requests.ask(paths, mine)
    assert asked is not None
    assert (asked.problem, asked.is_due()) == ("", True)


def test_a_damaged_request_goes(paths: NodePaths) -> None:
    """The next job asks again."""
    write(paths, request())
    (name,) = os.listdir(paths.trees)
    Path(paths.trees, name).write_text("{")
    assert requests.due(paths) == []
    assert os.listdir(paths.trees) == []

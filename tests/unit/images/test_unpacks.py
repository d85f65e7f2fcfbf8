"""Who asks for a tree, and how long it waits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib.bundles import ASKER
from tests.lib.runs import a_policy, a_record
from warmstart.errand import Errand, Errands
from warmstart.host import files
from warmstart.host.deadline import after
from warmstart.images import unpacks
from warmstart.images.unpacked import ImageKey, shelf_of
from warmstart.images.unpacks import UNPACKS, UnpackRequest
from warmstart.paths import NodePaths
from warmstart.policy.compiled import Policy

KEY = ImageKey("ab.x86_64.oci2")
NAME = "reg.io/a:1"


class Node:
    """A node with a shelf, on which no program runs."""

    def __init__(self, root: Path) -> None:
        policy = a_policy(root)
        self.policy: Policy = policy._replace(paths=policy.paths._replace(shelf=str(root / "shelf")))
        (root / "shelf").mkdir()
        self.paths = NodePaths(str(root / "n1"), "/nowhere")
        os.makedirs(f"{self.paths.state}/7", mode=0o700)
        self.shelf = shelf_of(self.policy, "n1")
        self.errands = Errands(self.paths, UNPACKS)

    def ask(self, key: ImageKey = KEY, uid: int = 5001) -> str:
        return unpacks.ask(self.policy, self.paths, NAME, key, ASKER._replace(uid=uid))

    def obtain(self, seconds: float = 5) -> object:
        return unpacks.obtain(self.policy, KEY, NAME, self.paths, a_record(), after(seconds))

    def make(self) -> None:
        os.makedirs(f"{self.shelf}/{KEY.tree}/tree")

    def fail(self, problem: str) -> None:
        begun = self.errands.begin(self.errands.all()[0])
        assert begun
        self.errands.put(begun, UnpackRequest(NAME, *KEY, ASKER, problem))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(Errands, "start_due", lambda _: None)
    monkeypatch.setattr(unpacks, "START_S", 0.0)
    return Node(tmp_path)


@pytest.mark.report
@pytest.mark.parametrize("place", ["shelf", "disk/deep/shelf"])
def test_nobody_makes_the_shelf(node: Node, tmp_path: Path, place: str) -> None:
    (tmp_path / "shelf").rmdir()
    paths = node.policy.paths._replace(shelf=str(tmp_path / place))
    node.policy = node.policy._replace(paths=paths)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match="its disk may not be mounted"):
        node.ask()
    assert sorted(tmp_path.iterdir()) == before
    assert node.errands.all() == []


def during(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: act())


def test_a_job_waits_until_its_tree_is_there(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    awaited = []

    def make() -> None:
        with files.opened_dir(node.shelf) as fd:
            awaited.append(unpacks.is_awaited(fd, KEY.tree))
        node.make()

    during(monkeypatch, make)
    assert node.obtain() == (KEY.tree, f"{node.shelf}/{KEY.tree}/tree", os.getuid(), os.getgid())
    assert awaited == [True]
    with files.opened_dir(node.shelf) as fd:
        assert not unpacks.is_awaited(fd, KEY.tree)
        assert not unpacks.is_awaited(fd, "nobody's")
    (errand,) = node.errands.all()
    assert node.errands.read(errand, UnpackRequest) == (NAME, *KEY, (7, os.getuid(), "ws-alice", "test"), "")


def test_nobody_waits_longer_than_the_policy_says(node: Node) -> None:
    assert node.obtain(0.0) == unpacks.TOO_LONG
    assert len(node.errands.all()) == 1


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (lambda node: node.fail("too large"), "too large"),
        (lambda node: node.errands.drop(KEY.tree), "nobody is at it any more"),
        (lambda node: node.errands.begin(node.errands.all()[0]), "its process has died"),
    ],
)
def test_a_job_waits_no_longer_than_somebody_is_at_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Node], object], told: str
) -> None:
    during(monkeypatch, lambda: happens(node))
    assert node.obtain() == told


def test_an_attempt_that_is_due_is_begun(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Errand] = []
    monkeypatch.setattr(Errands, "start_due", lambda errands: started.extend(errands.due()))
    during(monkeypatch, lambda: node.make() if len(started) > 1 else None)
    assert not isinstance(node.obtain(), str)
    assert {errand.key for errand in started} == {KEY.tree}


def test_without_a_shelf_nothing_is_asked_for(node: Node) -> None:
    node.policy = node.policy._replace(paths=node.policy.paths._replace(shelf=None))
    assert node.ask() == "the policy names no shelf (paths.shelf)"
    assert node.errands.all() == []

"""What doctor says of trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.policy_site import defaults, offering
from warmstart.doctor import prefixes
from warmstart.doctor.finding import run
from warmstart.doctor.node import Node
from warmstart.host.namespaces import Mount
from warmstart.paths import Installation
from warmstart.wings.trees import checks as trees

HUGE = "1048576TiB"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of trees on a shared file system."""
    monkeypatch.setattr(prefixes, "mount_of", lambda _: Mount("lustre", "/lustre"))
    (tmp_path / "trees").mkdir()
    return tmp_path / "trees"


def found(prefix: Path, *, way: str = "spank", **keys: object) -> list[tuple[str, str]]:
    policy = offering(defaults(), trees={"prefixes": [str(prefix)], "max_size": "1B", **keys})
    node = Node(Installation(str(prefix.parent)), policy._replace(constant_path=way))  # type: ignore[arg-type]
    return [(row.status, row.found) for row in run([trees.trees], node)]


def test_a_policy_without_trees_asks_for_nothing(prefix: Path) -> None:
    assert found(prefix, prefixes=[], max_size=HUGE) == []


def test_what_serves_is_fine(prefix: Path) -> None:
    assert found(prefix) == [("ok", "")]


def test_a_node_that_shows_no_job_a_copy(prefix: Path) -> None:
    ((status, text),) = found(prefix, way="link")
    assert (status, "trees are never packed" in text) == ("advice", True)


def test_a_node_that_cannot_show_or_pack_trees(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is older than mount_setattr(2), a tree of the largest size fits nowhere, and none may be so large."""
    assert trees._has_mount_setattr() or tuple(map(int, os.uname().release.split(".")[:2])) < (5, 12)
    monkeypatch.setattr(trees, "_has_mount_setattr", lambda: False)
    kernel, bounds, room = found(prefix, max_size=HUGE)
    assert [status for status, _ in (kernel, bounds, room)] == ["wrong", "advice", "advice"]
    assert "trees.max_size is above trees.keep" in bounds[1]
    assert "for want of space" in room[1]

"""What doctor says of trees: the kernel, the prefixes, the room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.policy_site import defaults
from tests.lib.wings.trees.values import offering
from warmstart.doctor import prefixes
from warmstart.doctor.node import Node
from warmstart.host.namespaces import Mount
from warmstart.paths import Installation
from warmstart.wings.trees import checks as trees


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of trees on a shared file system."""
    monkeypatch.setattr(prefixes, "mount_of", lambda _: Mount("lustre", "/lustre"))
    (tmp_path / "trees").mkdir()
    return tmp_path / "trees"


def found(prefix: Path, *prefixes: object, max_size: int = 1, way: str = "spank") -> list[tuple[str, str]]:
    """Return the status and the text of each finding."""
    policy = offering(defaults(), *prefixes, max_size=max_size)._replace(constant_path=way)
    node = Node(Installation(str(prefix.parent)), policy)
    return [(finding.status, finding.found) for finding in trees.trees(node)]


def test_a_policy_without_trees_asks_for_nothing(prefix: Path) -> None:
    """The kernel may be old, and the disk full."""
    assert found(prefix, max_size=1 << 60) == [("ok", "the policy offers no trees")]


def test_a_node_that_shows_no_job_a_copy(prefix: Path) -> None:
    """And bounds that contradict each other: nothing above `trees.keep` is packed."""
    ((status, text),) = found(prefix, prefix, way="link")
    assert (status, "trees are never packed" in text) == ("advice", True)
    assert ("advice", "trees.max_size is above trees.keep (50GiB), which no packed copy may exceed") in found(
        prefix, prefix, max_size=1 << 36
    )


def test_what_serves_is_fine(prefix: Path) -> None:
    """All that is offered is named."""
    assert found(prefix, prefix) == [("ok", f"jobs may have trees below {prefix}")]


def test_a_node_that_cannot_show_or_pack_trees(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is older than mount_setattr(2), and a tree of the largest size fits nowhere."""
    assert trees._has_mount_setattr() or tuple(map(int, os.uname().release.split(".")[:2])) < (5, 12)
    monkeypatch.setattr(trees, "_has_mount_setattr", lambda: False)
    statuses = [finding[0] for finding in found(prefix, prefix, max_size=1 << 60)]
    assert sorted(statuses) == ["advice", "advice", "wrong"]  # also that no copy may be so large

"""What nodes left that never return: it goes a month after the last job, if slurmctld has forgotten the name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.lib.node import Node
from warmstart.host.deadline import Deadline
from warmstart.host.remove import remove_tree
from warmstart.maintenance import orphans
from warmstart.maintenance.gone import remove_gone
from warmstart.slurm import commands
from warmstart.slurm.facts import Access

LEFT = [
    *("{run}/state/7", "{run}/queue/endings/0,0,0,7.0a1b2c3d", "{run}/queue/imports/0,0,0,a"),
    *("{var}/stage/7.0a1b2c3d.numba", ""),
]


class Controller:
    """A controller that knows the node `known`, and writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_down = False

    def knows(self, _access: Access, node: str, _deadline: Deadline) -> bool:
        self.asked.append(node)
        if self.is_down:
            raise ValueError("scontrol: Unable to contact slurm controller")
        return node == "known"


@pytest.fixture
def controller(node: Node, monkeypatch: pytest.MonkeyPatch) -> Controller:
    found = Controller()
    node.write(node.policy._replace(paths=node.policy.paths._replace(shelf=f"{node.base}/shelf")))
    monkeypatch.setattr(commands, "knows_node", found.knows)
    return found


def make(node: Node, name: str, *, last: float = 1.0, left: str = "") -> None:
    """Make what a node has, whose last job ended then, and something that waits there."""
    paths = node.installation.node(name)
    for place in (paths.state, paths.bundles, paths.layers, f"{node.base}/shelf/{name}/images"):
        os.makedirs(place)
    Path(paths.bundles, "copy.sqsh").write_bytes(b"copy")
    Path(paths.began).touch()
    if left:
        os.makedirs(left.format(var=paths.root, run=paths.runtime))
    for place in (paths.began, paths.state):
        os.utime(place, (last, last))


def there(node: Node) -> list[str]:
    """Return the nodes that have anything."""
    return sorted({*node.installation.nodes(), *os.listdir(node.base / "shelf")} - {"n1"})


def test_all_of_a_name_that_the_cluster_has_forgotten_goes(node: Node, controller: Controller) -> None:
    make(node, "gone")
    make(node, "known")
    assert remove_gone(node.installation, "") == []
    assert there(node) == ["known"]


@pytest.mark.parametrize("left", LEFT)
def test_what_waits_there_or_a_job_within_the_month_keeps_it(node: Node, controller: Controller, left: str) -> None:
    """Maintenance of that node finishes it first, or the name comes back. Nobody is asked."""
    make(node, "gone", left=left, last=1.0 if left else 2e9)
    assert remove_gone(node.installation, "") == []
    assert (there(node), controller.asked) == (["gone"], [])


def test_after_one_that_dies_the_node_is_still_found(
    node: Node, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(node, "gone")
    removed: list[str] = []

    def remove_one(fd: int, name: str, deadline: Deadline) -> None:
        if removed:
            raise OSError(errno.EIO, "broken")
        removed.append(name)
        remove_tree(fd, name, deadline)

    with monkeypatch.context() as patch:
        patch.setattr(orphans, "remove_tree", remove_one)
        assert len(remove_gone(node.installation, "")) == 1
    assert node.installation.nodes() == ["gone"]
    assert remove_gone(node.installation, "") == []
    assert there(node) == []


def test_nothing_goes_on_a_guess_where_the_controller_does_not_answer(node: Node, controller: Controller) -> None:
    make(node, "gone")
    controller.is_down = True
    assert ["Unable to contact" in str(error) for error in remove_gone(node.installation, "")] == [True]
    assert there(node) == ["gone"]

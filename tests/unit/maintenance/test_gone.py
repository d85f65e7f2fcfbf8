"""What nodes left that never return: it goes a month after the last job, if slurmctld has forgotten the name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.lib.node import Node
from warmstart.host import files
from warmstart.host.deadline import Deadline
from warmstart.maintenance import gone
from warmstart.maintenance.gone import remove_gone
from warmstart.slurm import commands
from warmstart.slurm.facts import Access


class Host:
    """A host with the directories of several nodes, and a controller that knows one of them."""

    def __init__(self, site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.asked: list[str] = []
        self.is_down = False
        self.shelf = site.base / "shelf"
        site.write(site.policy._replace(paths=site.policy.paths._replace(shelf=str(self.shelf))))
        monkeypatch.setattr(commands, "knows_node", self._knows)

    def _knows(self, _access: Access, node: str, _deadline: Deadline) -> bool:
        self.asked.append(node)
        if self.is_down:
            raise ValueError("scontrol: Unable to contact slurm controller")
        return node == "known"

    def node(self, name: str, *, last: float = 1.0, left: str = "") -> None:
        """Make what a node has, whose last job ended then, and something that waits there."""
        paths = self.site.installation.node(name)
        for place in (paths.state, paths.bundles, paths.errands, str(self.shelf / name / "images")):
            os.makedirs(place)
        Path(paths.bundles, "copy.sqsh").write_bytes(b"copy")
        if left:
            os.makedirs(f"{paths.root}/{left}")
        os.utime(paths.state, (last, last))

    def there(self) -> list[str]:
        return sorted({*self.site.installation.nodes(), *os.listdir(self.shelf)} - {"n1"})


@pytest.fixture
def host(node: Node, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(node, monkeypatch)


def test_a_name_that_the_cluster_has_forgotten(host: Host) -> None:
    host.node("gone")
    host.node("known")
    assert remove_gone(host.site.installation, "") == []
    assert host.there() == ["known"]
    told = [(event["kind"], event["path"]) for event in host.site.events("orphan.removed")]
    assert told == [("node", str(host.shelf / "gone")), ("node", host.site.installation.node("gone").root)]


@pytest.mark.parametrize(
    "left",
    ["state/7", "stage/7.0a1b2c3d.numba", "spool/bundle", "journal/0a1b2c3d", "errands/harvests/7"],
)
def test_what_waits_there_keeps_it(host: Host, left: str) -> None:
    host.node("gone", left=left)
    assert remove_gone(host.site.installation, "") == []
    assert (host.there(), host.asked) == (["gone"], [])


def test_a_job_within_the_month_keeps_it(host: Host) -> None:
    host.node("gone", last=2e9)
    assert remove_gone(host.site.installation, "") == []
    assert (host.there(), host.asked) == (["gone"], [])


def test_one_that_dies_is_followed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.node("gone")
    removed: list[str] = []

    def remove_one(fd: int, name: str, deadline: Deadline) -> None:
        if removed:
            raise OSError(errno.EIO, "broken")
        removed.append(name)
        files.remove_tree(fd, name, deadline)

    with monkeypatch.context() as patch:
        patch.setattr(gone, "remove_tree", remove_one)
        assert len(remove_gone(host.site.installation, "")) == 1
    assert host.site.installation.nodes() == ["gone"]
    assert remove_gone(host.site.installation, "") == []
    assert host.there() == []


def test_a_controller_that_does_not_answer(host: Host) -> None:
    host.node("gone")
    host.is_down = True
    assert ["Unable to contact" in str(error) for error in remove_gone(host.site.installation, "")] == [True]
    assert host.there() == ["gone"]

"""`warmstart maintain`: every node of a host, or the store; its status says whether all was done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.node import NODE, Node, OsAs
from warmstart.caches.store import gc
from warmstart.cli import maintain
from warmstart.host.deadline import after
from warmstart.host.files import DiskFailed
from warmstart.maintenance import metrics
from warmstart.maintenance.node import Report
from warmstart.maintenance.store import StoreMaintenance, StoreReport
from warmstart.paths import Installation
from warmstart.session import MaintenanceBusy, NotRoot


@pytest.fixture
def nodes(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have two nodes on this host; collect those that are maintained, at no lower priority than the tests."""
    seen: list[str] = []

    def done(_installation: Installation, node: str, slurm_conf: str) -> Report:
        assert slurm_conf == "/etc/slurm.conf"
        seen.append(node)
        if node == "n3":
            raise MaintenanceBusy(what="on node n3")
        return Report(node, ended=2, pruned=7, failed=("copies: x",) if node == "n4" else ())

    node.environ(SLURM_CONF="/etc/slurm.conf")
    monkeypatch.setattr(maintain, "be_idle", lambda: None)
    monkeypatch.setattr(maintain, "maintain_node", done)
    for name in (NODE, "n2"):
        Path(node.installation.node(name).state).mkdir(parents=True)
    return seen


def test_all_nodes_that_have_had_hooks(node: Node, nodes: list[str]) -> None:
    assert [report["ended"] for report in node.json("maintain")] == [2, 2]
    assert nodes == [NODE, "n2"]
    shown = node.command("maintain", "--node", "n2")
    assert (shown.exit_code, "7B" in shown.stdout, nodes[2:]) == (0, True, ["n2"])


@pytest.mark.parametrize(("name", "said"), [("n3", "another maintenance run is active"), ("n4", "copies: x")])
def test_a_part_that_failed_is_status_1(node: Node, nodes: list[str], name: str, said: str) -> None:
    result = node.command("maintain", "--node", name)
    assert (result.exit_code, said in result.stdout) == (1, True)
    assert nodes == [name]


def test_switched_off_is_off(node: Node, nodes: list[str]) -> None:
    Path(node.installation.off_switch).touch()
    result = node.command("maintain")
    assert (result.exit_code, "switched off" in result.stderr, nodes) == (0, True, [])


@pytest.fixture
def written(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have a directory for metrics; collect what is written."""
    calls: list[str] = []
    paths = node.policy.paths._replace(metrics=str(node.base / "textfiles"))
    node.write(node.policy._replace(paths=paths))
    monkeypatch.setattr(maintain, "os", OsAs(0))
    monkeypatch.setattr(metrics, "write_host", lambda _installation, found: calls.append(found.policy.paths.metrics))
    monkeypatch.setattr(metrics, "write_store", lambda session: calls.append(session.policy.paths.store))
    return calls


def test_metrics_come_last(node: Node, nodes: list[str], written: list[str]) -> None:
    """Of the host, also while it is switched off; or of the store."""
    assert node.command("maintain").exit_code == 0
    assert (nodes, written) == ([NODE, "n2"], [f"{node.base}/textfiles"])
    assert node.command("maintain", "--store").exit_code == 0
    assert written[1:] == [str(node.store)]
    Path(node.installation.off_switch).touch()
    assert node.command("maintain").exit_code == 0
    assert (len(nodes), written[2:]) == (2, [f"{node.base}/textfiles"])


@pytest.mark.parametrize("part", [(), ("--store",)])
def test_metrics_that_can_not_be_written_are_status_1(
    node: Node, nodes: list[str], written: list[str], monkeypatch: pytest.MonkeyPatch, part: tuple[str, ...]
) -> None:
    def refuse(*_: object) -> None:
        raise DiskFailed(what="/textfiles", problem="no space")

    monkeypatch.setattr(metrics, "write_host", refuse)
    monkeypatch.setattr(metrics, "write_store", refuse)
    assert node.command("maintain", *part).exit_code == 1
    assert (nodes == [], written) == (bool(part), [])


def test_an_error_is_status_2(node: Node, nodes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Report:
        raise NotRoot(what="warmstart maintain")

    monkeypatch.setattr(maintain, "maintain_node", refuse)
    result = node.command("maintain")
    assert (result.exit_code, "sudo" in result.stderr) == (2, True)


def test_the_store_is_maintained_on_one_host(node: Node, nodes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert node.json("maintain", "--store") == StoreReport()._asdict()
    assert node.command("maintain", "--store").stdout == "nothing to do\n"
    other = node.client()
    with other.worker.begin(after(5), gc.lock, other.path) as is_ours:
        assert is_ours(after(5))
        assert node.command("maintain", "--store").exit_code == 1
    monkeypatch.setattr(StoreMaintenance, "all", lambda _work: StoreReport(failed=1))
    assert node.command("maintain", "--store").exit_code == 1
    assert nodes == []

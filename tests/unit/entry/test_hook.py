"""What every hook of a node does around its work: the audit, and the one place that decides the exit status."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tests.lib.node import Node
from warmstart.audit import syslog
from warmstart.entry.hook import DRAINS, OK, Hook, run_hook
from warmstart.errors import NodeError, ResourceError, WarmstartError
from warmstart.run.state import JobBusy
from warmstart.slurm import commands
from warmstart.store.layout import StoreFailed


class SampleFailed(ResourceError):
    """An error of the node's resources."""

    code = "sample-hook-failed"
    template = "no {what}"


class SampleBroken(NodeError):
    """An error that drains."""

    code = "sample-hook-broken"
    template = "the disk is broken"


@pytest.fixture
def drained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []

    def drain(_scontrol: str, node: str, reason: str, _conf: str) -> bool:
        told.append((node, reason))
        return True

    monkeypatch.setattr(commands, "drain_node", drain)
    return told


def not_called(hook: Hook) -> str:
    pytest.fail(f"{hook.job.id} has a hook")


def test_a_hook_that_works(node: Node) -> None:
    seen: list[Hook] = []

    def work(hook: Hook) -> str:
        seen.append(hook)
        assert [event["hook"] for event in node.events("hook.started", 7)] == ["prolog"]
        return OK

    assert run_hook("prolog", node.installation.prefix, work) == 0
    (hook,) = seen
    assert (hook.job.id, hook.job.user, hook.policy) == (7, "ws-alice", node.policy)
    assert hook.store.writer == f"n1-{hook.run_id}"
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (hook.paths.root, hook.paths.state, hook.paths.view)]
    assert modes == [0o755, 0o700, 0o711]
    finished = node.result("prolog", 7)
    assert (finished["outcome"], finished["status"], finished["partition"]) == ("ok", 0, "main")


@pytest.mark.parametrize("error", [SampleFailed(what="x"), StoreFailed(what="x", problem="y"), JobBusy(job_id=7)])
def test_what_is_not_the_nodes_fault_does_not_drain(
    node: Node, drained: list[tuple[str, str]], capsys: pytest.CaptureFixture[str], error: WarmstartError
) -> None:
    def work(_hook: Hook) -> str:
        raise error

    assert run_hook("prolog", node.installation.prefix, work) == 0
    assert (drained, str(error) in capsys.readouterr().err) == ([], True)
    result = node.result("prolog")
    assert result["outcome"] == "failed"
    assert [failure["code"] for failure in result["failures"]] == [error.code]


def test_a_broken_node_drains_with_its_reason(node: Node, drained: list[tuple[str, str]]) -> None:
    def work(_hook: Hook) -> str:
        raise SampleBroken

    assert run_hook("prolog", node.installation.prefix, work) == DRAINS
    assert drained == [("n1", "the disk is broken (sample-hook-broken)")]
    assert [event["reason_given"] for event in node.events("node.drained")] == [True]
    result = node.result("prolog")
    assert (result["outcome"], result["status"], result["failures"][0]["degree"]) == ("drained", DRAINS, "drained")


def test_a_bug_is_audited_and_drains_nothing(
    node: Node, drained: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    def work(_hook: Hook) -> str:
        raise ZeroDivisionError

    assert run_hook("prolog", node.installation.prefix, work) == 0
    assert drained == []
    assert node.result("prolog")["outcome"] == "crashed"
    assert "ZeroDivisionError" in node.result("prolog")["traceback"]
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "SLURM_JOB_UID", "SLURMD_NODENAME"])
def test_in_an_environment_that_is_not_slurms_nothing_is_done(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    monkeypatch.delenv(variable)
    assert run_hook("prolog", node.installation.prefix, not_called) == 0
    assert variable in capsys.readouterr().err
    assert node.installation.nodes() == []


@pytest.mark.parametrize("case", ["off", "heterogeneous", "no policy", "another release"])
def test_the_view_of_an_earlier_run_goes_where_nothing_replaces_it(node: Node, case: str) -> None:
    """The tasks of this run would take it for theirs. It has the id that they see."""
    paths, site = node.paths, node.installation
    view = Path(paths.view, "5" if case == "heterogeneous" else "7")
    run = Path(paths.state, "7", "run.json")
    for directory in (view, run.parent):
        directory.mkdir(parents=True)
    run.write_text('{"format": 99}')
    if case == "heterogeneous":
        node.environ(SLURM_HET_JOB_ID="5")
    if case in ("off", "heterogeneous"):
        Path(site.off_switch).touch()
    if case == "no policy":
        os.unlink(site.compiled_policy)
    assert run_hook("prolog", site.prefix, lambda hook: str(hook.earlier_run())) == 0
    assert os.listdir(paths.view) == []


def test_switched_off_is_off(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(node.installation.off_switch).touch()
    monkeypatch.delenv("SLURM_JOB_ID")
    assert run_hook("prolog", node.installation.prefix, not_called) == 0
    assert node.installation.nodes() == []


def test_without_a_policy_nothing_is_done(
    node: Node, drained: list[tuple[str, str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is no fault of the node's: the job runs as if warmstart were not there."""
    sent: list[str] = []
    monkeypatch.setattr(syslog, "send", lambda _level, text: sent.append(text))
    os.unlink(node.installation.compiled_policy)
    assert run_hook("prolog", node.installation.prefix, not_called) == 0
    assert (drained, "policy.yaml" in capsys.readouterr().err) == ([], True)
    # Nobody says where the log is, so its lines go to syslog.
    assert [(line["event"], line.get("outcome")) for line in map(json.loads, sent)][1:] == [
        ("policy.rejected", None),
        ("hook.finished", "failed"),
    ]


def test_a_state_directory_of_somebody_elses_is_refused(
    node: Node, drained: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody could put a link in the place of what lies in it; the job starts without us."""
    os.makedirs(node.paths.root)
    os.chmod(node.paths.root, 0o777)
    assert run_hook("prolog", node.installation.prefix, not_called) == 0
    assert "can be written by others" in capsys.readouterr().err
    assert drained == []


@pytest.mark.parametrize("name", ["prolog", "epilog"])
def test_a_run_of_another_release_stays(node: Node, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """That release ends the run; meanwhile the hook does nothing, and the node stays in service."""
    os.makedirs(f"{node.paths.state}/7")
    run = Path(node.paths.state, "7", "run.json")
    run.write_text('{"format": 2}')
    seen: list[object] = []

    def look(hook: Hook) -> str:
        seen.append(hook.earlier_run())
        return OK

    assert run_hook(name, node.installation.prefix, look) == 0
    assert (seen, run.read_text()) == ([], '{"format": 2}')
    assert "run.json: it has format 2, known is 1" in capsys.readouterr().err


def test_an_audit_that_can_not_be_written_fails_no_job(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    Path(node.policy.paths.audit).mkdir()
    assert run_hook("epilog", node.installation.prefix, lambda _hook: OK) == 0
    said = capsys.readouterr().err.splitlines()
    assert ["audit log" in line for line in said] == [True] * 2

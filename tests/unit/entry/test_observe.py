"""An observed job: its prolog says what it would do, and nothing is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.node import NUMBA, Node
from tests.lib.observing import files, run
from warmstart import plan
from warmstart.entry import epilog, prolog
from warmstart.host.files import FileSystemBroken
from warmstart.policy.keys import Match
from warmstart.run import state as runs
from warmstart.run.state import Run
from warmstart.slurm import commands


@pytest.fixture
def observed(node: Node) -> Node:
    """Return a site whose policy observes, with a job that asks for nothing."""
    node.write(node.policy._replace(mode="observe"))
    return node


def test_what_a_job_would_get_is_said(observed: Node) -> None:
    result = run(observed)
    assert result["planned"] == ["workspace", "seed", "environment"]
    assert (result["rules"], result["granted"]["profiles"]) == (["everyone"], ["numba"])
    assert "steps" not in result


def test_a_job_that_would_be_refused_runs(observed: Node) -> None:
    observed.environ(SLURM_JOB_COMMENT="warmstart: profiles=numbers")
    result = run(observed)
    (failure,) = result["failures"]
    assert (failure["degree"], failure["code"], result["outcome"]) == ("refused", "not-offered", "ok")


def test_a_job_that_no_rule_matches_has_no_notice(observed: Node) -> None:
    observed.write(observed.policy._replace(rules=()))
    observed.environ(SLURM_JOB_COMMENT="warmstart: profiles=numba")
    result = run(observed)
    assert ("planned" in result, result["excluded"]) == (False, "no rule matches it on this node")


def test_a_bug_in_observing_harms_no_job(observed: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(plan, "left_out", fail)
    assert prolog.main(observed.installation.prefix) == 0
    assert ("traceback" in observed.result("prolog"), os.listdir(observed.paths.view)) == (True, [])


@pytest.mark.parametrize("early", [False, True])
def test_a_broken_node_is_not_drained(observed: Node, monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    def broken(*_: object) -> None:
        raise FileSystemBroken(path="/var", problem="read-only")

    monkeypatch.setattr(commands, "drain_node", broken)
    if early:
        monkeypatch.setattr("warmstart.entry.hook.ensure_path", broken)
    else:
        monkeypatch.setattr(runs, "job_lock", broken)
    for hook in (prolog, epilog):
        assert hook.main(observed.installation.prefix) == 0
    codes = [failure["code"] for failure in observed.failures()]
    assert codes == [] if early else ["file-system-broken"] * 2


def test_a_job_that_began_before_is_ended(node: Node) -> None:
    """With the epilog that its record asks for, whatever the mode is by now. One that was observed has none."""
    assert prolog.main(node.installation.prefix) == 0
    record: Run | None = runs.load(node.paths.state, 7)
    assert record
    node.write(node.policy._replace(mode="observe"))
    assert epilog.main(node.installation.prefix) == 0
    assert [*node.result("epilog")["steps"]] == ["harvest", "release"]
    assert not Path(record.directory).exists()
    assert (os.listdir(node.paths.view), os.listdir(node.paths.state)) == ([], [])
    before = files(node)
    assert epilog.main(node.installation.prefix) == 0
    assert files(node) == before


def test_one_node_enforces(observed: Node) -> None:
    """A later rule with a mode decides; one that matches the node does so for jobs of one node."""
    canary = NUMBA._replace(name="canary", match=Match(node=("n1",)), mode="enforce")
    observed.write(observed.policy._replace(rules=(NUMBA, canary)))
    observed.environ(SLURM_JOB_NODELIST="n[1-2]")
    run(observed)
    observed.environ(SLURM_JOB_NODELIST="n1")
    assert prolog.main(observed.installation.prefix) == 0
    assert runs.load(observed.paths.state, 7)

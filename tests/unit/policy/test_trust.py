"""What the policy declares as enforced counts only while Slurm is known to enforce it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib.command_line import POLICY, answer, installed, run
from tests.lib.policy_site import Compile, a_rule
from tests.lib.runs import a_job
from warmstart.cli import policy as command
from warmstart.cli.policy import _Cluster
from warmstart.doctor import policy as doctor
from warmstart.doctor.finding import run as run_checks
from warmstart.job import Job
from warmstart.paths import Installation
from warmstart.policy import trust
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant, combine, matching, private_repository
from warmstart.slurm.facts import Settings
from warmstart.slurm.slurmctld import LookUpFailed, Slurmctld

pytestmark = pytest.mark.threat(36)

JOB = a_job(uid=1000, gid=1000, user="alice", cluster="c", partition="gpu", account="ml")
PUBLISHER = JOB._replace(uid=1501, user="svc_ml")
RULES = """\
version: 1
paths: {store: /shared/warmstart}
images:
  registries: [a.org]
  credentials:
    file: /etc/warmstart/login
    repositories: [{name: team, repository: a.org/ml/*, match: {account: ml}}]
trust: {account: enforced}
rules:
  - {name: everyone, profiles: [numba]}
  - {name: comfort, match: {account: ml}, env: {LEVEL: "3"}}
  - {name: team, match: {account: ml, partition: gpu}, scope: account, publish: {users: [svc_ml]}}
"""
ALL = ("associations", "limits", "qos", "safe")


@pytest.fixture
def policy(compiled_of: Compile) -> Policy:
    return compiled_of(RULES)


@pytest.fixture
def known(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes what is remembered of the running Slurm; it returns the path."""

    def write(*words: str, age: float = 0.0) -> str:
        path = tmp_path / "enforcement.json"
        path.write_text(json.dumps({"at": time.time() - age, "words": list(words)}))
        return str(path)

    return write


def granted(policy: Policy, job: Job) -> Grant:
    return combine(policy, matching(policy, job, list), job)


def private(policy: Policy) -> str:
    """Return whose credentials the job of the tests gets."""
    return private_repository(policy, JOB, list, "a.org/ml/app")


def test_an_enforced_account_is_a_scope(policy: Policy, known: Callable[..., str]) -> None:
    proven = trust.proven(policy, known(*ALL))
    assert proven == policy
    assert granted(proven, JOB).read_scopes == ["account-ml", "user-1000-alice"]
    assert granted(proven, PUBLISHER).publish_scope == "account-ml"
    assert private(proven) == "team"
    assert trust.problem(proven) is None


@pytest.mark.parametrize(
    "words", [(), ("limits",), ("qos",), ("nojobs", "wckeys")], ids=lambda words: "-".join(words) or "none"
)
def test_an_account_that_slurm_does_not_enforce_grants_nothing(
    policy: Policy, known: Callable[..., str], words: tuple[str, ...]
) -> None:
    """`sbatch -A ml` by anybody: neither the account's scope nor its credentials; what everybody may choose stays."""
    doubted = trust.proven(policy, known(*words))
    for job in (JOB, PUBLISHER):
        grant = granted(doubted, job)
        assert (grant.read_scopes, grant.publish_scope) == ([grant.publish_scope], f"user-{job.uid}-{job.user}")
        assert (grant.profiles, grant.env) == (["numba"], {"LEVEL": "3"})
    assert private(doubted) == ""
    problem = str(trust.problem(doubted))
    assert f"AccountingStorageEnforce is {','.join(words) or 'none'}, without associations" in problem


@pytest.mark.parametrize("age", [trust.LONGEST_S + 60, -3600.0])
def test_an_answer_of_long_ago_or_of_the_future_proves_nothing(
    policy: Policy, known: Callable[..., str], age: float
) -> None:
    path = known(*ALL, age=age)
    assert trust.proven(policy, path).doubt
    assert "was last read" in str(trust.problem(trust.proven(policy, path)))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"at": "now", "words": ["associations"]}', '{"at": 1e99, "words": 7}']
)
def test_a_damaged_memory_proves_nothing(policy: Policy, tmp_path: Path, text: str) -> None:
    path = tmp_path / "enforcement.json"
    assert trust.proven(policy, str(path)).doubt
    path.write_text(text)
    assert trust.proven(policy, str(path)).doubt


def test_a_memory_that_others_can_write_proves_nothing(policy: Policy, known: Callable[..., str]) -> None:
    """It would be a way to a team's scope."""
    path = known(*ALL)
    os.chmod(path, 0o666)
    assert trust.proven(policy, path).doubt


def test_a_doubted_rule_restricts_all_the_same(policy: Policy, known: Callable[..., str]) -> None:
    wide = a_rule(name="wide", scope="site")
    doubted = trust.proven(policy._replace(rules=(wide, *policy.rules)), known())
    assert granted(doubted, JOB).read_scopes == ["user-1000-alice"]


def test_a_policy_that_declares_nothing_reads_nothing(compiled_of: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm prolog pays for this only where a policy relies on it."""
    monkeypatch.setattr(trust, "_known", lambda _: pytest.fail("the file was read"))
    bare = compiled_of("version: 1\npaths: {store: /shared/warmstart}\n")
    assert trust.proven(bare, "/nowhere") is bare


@pytest.fixture
def slurmctld(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str] | None]:
    """Return what the running slurmctld enforces, under "words"; None if it does not answer; nothing at first."""
    state: dict[str, list[str] | None] = {"words": []}

    def enforced(*_: object) -> list[str]:
        if (words := state["words"]) is None:
            raise LookUpFailed(what="what it enforces", problem="silent")
        return words

    def asked(_: Policy) -> _Cluster | None:
        words = state["words"]
        return words if words is None else _Cluster(Settings({"AccountingStorageEnforce": [",".join(words)]}), {})

    monkeypatch.setattr(Slurmctld, "enforced", enforced)
    monkeypatch.setattr(command, "_asked", asked)
    return state


@pytest.fixture
def installation(tmp_path: Path, slurmctld: object) -> Installation:
    return installed(tmp_path, POLICY + "trust: {account: enforced}\n")


def test_an_edit_asks_nobody_and_maintenance_remembers_what_slurmctld_said(
    installation: Installation, slurmctld: dict[str, list[str] | None]
) -> None:
    """Without an answer the last one stays."""

    def hooks_policy() -> Policy:
        return current_policy(installation, keep=True).policy

    slurmctld["words"] = ["associations"]
    policy = hooks_policy()
    assert policy.doubt
    trust.remember(policy, installation, "")
    assert not hooks_policy().doubt
    assert not current_policy(installation).policy.doubt
    slurmctld["words"] = None
    trust.remember(policy, installation, "")
    assert not hooks_policy().doubt


def test_doctor_calls_it_critical(installation: Installation, slurmctld: dict[str, list[str] | None]) -> None:
    def status() -> str:
        return {found.check: found.status for found in run_checks(doctor.CHECKS, installation)}["policy.trust"]

    assert status() == "critical"
    policy = current_policy(installation, keep=True).policy
    assert status() == "critical"
    slurmctld["words"] = ["associations"]
    trust.remember(policy, installation, "")
    assert status() == "ok"


@pytest.mark.parametrize("words", [[], ["qos"], None])
def test_policy_check_calls_it_critical(
    installation: Installation, slurmctld: dict[str, list[str] | None], words: list[str] | None
) -> None:
    slurmctld["words"] = words
    done = run(installation, "policy", "check")
    assert done.exit_code == 1
    assert "critical: trust.account is enforced in the policy, but" in " ".join(done.stderr.split())
    assert answer(installation, "policy", "check")["critical"]["code"] == "trust-unproven"
    slurmctld["words"] = ["associations"]
    assert run(installation, "policy", "check").exit_code == 0

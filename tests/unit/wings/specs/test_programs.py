"""prolog-slurmctld and epilog-slurmctld as slurmctld starts them: they always end with 0."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from warmstart.policy.current import CurrentPolicy, current_policy
from warmstart.wings.specs.frame import Controller
from warmstart.wings.specs.programs import epilog_slurmctld, prolog_slurmctld

ME = pwd.getpwuid(os.geteuid()).pw_name
POLICY = """\
version: 1
paths: {{store: /shared/w}}
store_user: daemon
import_user: bin
validate_user: sys
slurmctld: {{spec_directory: {root}/specs, user: {user}, deadline: 20s}}
rules:
  - {{name: named, match: {{{match}: "*"}}}}
"""
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": "64201",
    "SLURM_JOB_GID": "64201",
    "SLURM_JOB_USER": "ws-alice",
    "SLURM_JOB_NAME": "nightly",
    "SLURM_CLUSTER_NAME": "c1",
    "SLURM_JOB_RESTART_COUNT": "0",
}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a prefix with a policy and a directory of specs; Slurm's variables of a job are set."""
    (tmp_path / "specs").mkdir(mode=0o755)
    Path(Controller(str(tmp_path)).own).mkdir(parents=True)
    write_policy(tmp_path)
    answer(tmp_path, "echo nobody should ask >&2; exit 1")
    # The loader takes no program below /tmp, and that is right.

    def current(installation: Controller, keep: bool) -> CurrentPolicy:
        found = current_policy(installation, keep=keep)
        paths = found.policy.paths._replace(scontrol=f"{tmp_path}/scontrol")
        return found._replace(policy=found.policy._replace(paths=paths))

    monkeypatch.setattr("warmstart.wings.specs.frame.current_policy", current)
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def write_policy(root: Path, match: str = "job_name", user: str = ME) -> None:
    """Put a policy in place with one rule that needs a spec."""
    path = Path(Controller(str(root)).policy)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(POLICY.format(root=root, match=match, user=user))


def answer(root: Path, script: str) -> None:
    """Put a stand-in for squeue in place, which lies beside the policy's scontrol."""
    (root / "squeue").write_text(f"#!/bin/sh\n{script}\n")
    (root / "squeue").chmod(0o755)


def told(root: Path) -> dict[str, object]:
    """Return the contents of the job's spec."""
    content: dict[str, object] = json.loads((root / "specs" / "c1.7.json").read_text())
    return content


def audited(root: Path) -> list[dict[str, object]]:
    """Return the lines of the controller's own log."""
    log = Path(Controller(str(root)).audit)
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_job_s_spec_comes_and_goes(root: Path) -> None:
    assert prolog_slurmctld.main(str(root)) == 0
    assert (told(root)["job_name"], told(root)["qos"]) == ("nightly", None)
    assert epilog_slurmctld.main(str(root)) == 0
    assert os.listdir(root / "specs") == []
    events = [(line["hook"], line["event"]) for line in audited(root)]
    assert events == [
        ("prolog-slurmctld", "hook.started"),
        ("prolog-slurmctld", "hook.finished"),
        ("epilog-slurmctld", "hook.started"),
        ("epilog-slurmctld", "hook.finished"),
    ]


def test_the_controller_is_asked_only_where_a_rule_needs_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_policy(root, match="qos")
    answer(root, "echo '7|CONFIGURING|high|7|N/A|1795333348|'")
    prolog_slurmctld.main(str(root))
    assert told(root)["qos"] == "high"
    answer(root, "exit 1")
    monkeypatch.setenv("SLURM_JOB_QOS", "low")
    prolog_slurmctld.main(str(root))
    assert told(root)["qos"] == "low"
    assert [line["qos"] for line in audited(root) if line["event"] == "hook.finished"] == ["squeue", "slurm"]


def test_a_look_up_that_fails_costs_the_qos_alone(root: Path) -> None:
    write_policy(root, match="qos")
    answer(root, "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert prolog_slurmctld.main(str(root)) == 0
    assert (told(root)["job_name"], told(root)["qos"]) == ("nightly", None)
    *_, last = audited(root)
    assert ("Unable to contact" in str(last["failures"]), last["qos"]) == (True, "nobody")


def test_the_spec_is_there_before_the_controller_is_asked(root: Path) -> None:
    write_policy(root, match="qos")
    answer(root, f"cp {root}/specs/c1.7.json {root}/seen; exit 1")
    prolog_slurmctld.main(str(root))
    assert json.loads((root / "seen").read_text())["job_name"] == "nightly"


def broken_policy(root: Path) -> None:
    Path(Controller(str(root)).policy).write_text("version: 2\n")


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (broken_policy, "policy-invalid"),
        (lambda root: (root / "specs").rmdir(), "spec-unusable"),
        (lambda root: (root / "specs").chmod(0o777), "spec-unusable"),
    ],
)
def test_what_is_wrong_is_audited_and_no_status(root: Path, spoil: Callable[[Path], None], code: str) -> None:
    spoil(root)
    assert prolog_slurmctld.main(str(root)) == 0
    *_, last = audited(root)
    assert (last["outcome"], code in str(last["failures"])) == ("failed", True)


def test_without_slurms_variables_or_with_the_switch_off_nothing_happens(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(Controller(str(root)).off_switch).touch()
    assert prolog_slurmctld.main(str(root)) == 0
    Path(Controller(str(root)).off_switch).unlink()
    monkeypatch.delenv("SLURM_JOB_UID")
    assert prolog_slurmctld.main(str(root)) == 0
    assert os.listdir(root / "specs") == []


def test_a_bug_is_audited_and_no_status(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("warmstart.wings.specs.controller.spec_of", bug)
    assert prolog_slurmctld.main(str(root)) == 0
    assert audited(root)[-1]["outcome"] == "crashed"

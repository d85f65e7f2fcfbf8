"""`warmstart policy check` and `show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.lib.command_line import POLICY, answer, installed, run
from warmstart.cli import cli
from warmstart.paths import Installation
from warmstart.policy.current import current_policy


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Know no partitions and nodes, whatever this host has. For a file that is missing Slurm waits a minute."""
    monkeypatch.setenv("SLURM_CONF", "/dev/null")


@pytest.fixture
def site(tmp_path: Path) -> Installation:
    installation = installed(tmp_path)
    current_policy(installation, keep=True)
    return installation


def broken(site: Installation) -> None:
    text = POLICY.replace("registries:", "registeries:").replace("profiles: [numba]", "profiles: [numbers]")
    Path(site.policy).write_text(text)


def test_check_counts_the_rules_of_a_good_policy(site: Installation) -> None:
    result = run(site, "policy", "check")
    assert (result.exit_code, result.stdout.strip()) == (0, "ok: 2 rules")
    good = {"file": site.policy, "ok": True, "rules": 2, "problems": [], "critical": None, "timeouts": []}
    assert answer(site, "policy", "check") == good


def test_check_tells_every_problem_with_its_place(site: Installation) -> None:
    broken(site)
    result = run(site, "policy", "check")
    assert result.exit_code == 1
    assert f"{site.policy}:6:10: images.registeries: unknown key; did you mean registries?" in result.stdout
    found = answer(site, "policy", "check")
    assert (found["ok"], found["code"]) == (False, "policy-invalid")
    problem = "images.registeries: unknown key; did you mean registries?"
    place = {"file": site.policy, "line": 6, "column": 10, "severity": "error", "problem": problem}
    assert found["problems"] == [place]


def test_check_takes_a_draft_anywhere(tmp_path: Path, site: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "draft.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    assert run(site, "policy", "check", "draft.yaml").exit_code == 0
    missing = run(site, "policy", "check", "none.yaml")
    assert (missing.exit_code, "none.yaml: No such file" in missing.stderr) == (2, True)


def test_check_reads_standard_input(site: Installation) -> None:
    assert CliRunner().invoke(cli, ["policy", "check", "-"], obj=site, input=POLICY).output == "ok: 2 rules\n"
    result = CliRunner().invoke(cli, ["policy", "check", "-"], obj=site, input=POLICY + "x: 1\n")
    assert (result.exit_code, result.output.startswith("-:14:1: x: unknown key")) == (1, True)


def test_check_runs_where_the_accounts_do_not_exist(tmp_path: Path) -> None:
    text = POLICY.replace("daemon", "nobody-here").replace("bin\n", "nor-here\n")
    site = installed(tmp_path, text + '  - {name: x, match: {user: nor-me, partition: "p.*"}}\n')
    assert "no account 'nobody-here' on this node" in run(site, "policy", "check").stdout
    offline = run(site, "policy", "check", "--offline")
    assert (offline.exit_code, "looks like a regular expression" in offline.stdout) == (0, True)
    assert "no user" not in offline.stdout


def slurmctld(programs: Path, settings: str) -> str:
    """Return POLICY with a scontrol that answers: these settings, and a partition with three nodes."""
    scontrol = programs / "scontrol"
    shown = f"AccountingStorageEnforce = none\nSlurmdTimeout = 300 sec\nBatchStartTimeout = 360 sec\n{settings}"
    partition = "PartitionName=gpu-a MaxNodes=3 Nodes=n[1-3] State=UP"
    scontrol.write_text(f"#!/bin/sh\n[ \"$*\" = 'show config' ] && echo '{shown}' || echo '{partition}'\n")
    scontrol.chmod(0o755)
    return POLICY.replace("paths: {", f"paths: {{scontrol: {scontrol}, ")


def test_warnings_have_places_and_leave_the_policy_good(tmp_path: Path, programs: Path) -> None:
    policy = slurmctld(programs, "Prolog = /x\nPrologEpilogTimeout = 290")
    site = installed(tmp_path, policy + "  - {name: x, match: {partition: [gpu-a, gpu-b], node: [n4]}}\n")
    lines = run(site, "policy", "check").stdout.splitlines()
    assert [line.removeprefix(f"{site.etc}/") for line in lines] == [
        "policy.yaml:14:42: warning: no partition 'gpu-b' on this cluster; did you mean gpu-a?",
        "policy.yaml:14:57: warning: no node 'n4' on this cluster; allowed: n1, n2, n3: the rule can never match",
        "ok: 3 rules, 2 warnings",
    ]
    rows = answer(site, "policy", "check")["problems"]
    assert [(row["line"], row["column"], row["severity"]) for row in rows] == [
        (14, 42, "warning"), (14, 57, "warning")]  # fmt: skip


@pytest.mark.parametrize(("limit", "hooks"), [(280, []), (270, ["prolog"]), (30, ["prolog", "epilog"])])
def test_check_compares_budgets_with_slurms_timeouts(
    tmp_path: Path, programs: Path, limit: int, hooks: list[str]
) -> None:
    """By default a prolog may take 270 s and an epilog 60; Slurm must not kill them within that."""
    policy = slurmctld(programs, f"Epilog = /x\nPrologEpilogTimeout = {limit}")
    site = installed(tmp_path / "site", policy)
    result = run(site, "policy", "check")
    assert result.exit_code == bool(hooks)
    assert all(f"kills the {hook} after {limit} s" in result.stderr for hook in hooks)
    found = answer(site, "policy", "check")
    assert (len(found["timeouts"]), found["ok"]) == (len(hooks), not hooks)


def test_a_slurm_without_hooks_has_no_timeouts_to_compare(tmp_path: Path, programs: Path) -> None:
    """A policy is written before Slurm is told of warmstart."""
    site = installed(tmp_path / "site", slurmctld(programs, "PrologEpilogTimeout = 65534"))
    assert run(site, "policy", "check").exit_code == 0


def shown(site: Installation, status: int = 0) -> dict[str, Any]:
    result = run(site, "policy", "show")
    assert result.exit_code == status
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_show_tells_values_and_rules_in_force(site: Installation) -> None:
    found = shown(site)
    assert (found["file"], found["problem"]) == (site.compiled_policy, None)
    assert found["policy"]["store_user"] == "daemon"
    assert found["policy"]["rules"][1]["match"] == {"partition": ["gpu*"]}


def test_show_tells_that_an_edit_was_rejected(site: Installation) -> None:
    broken(site)
    found = shown(site, 1)
    assert (found["file"], found["problem"]["code"]) == (site.compiled_policy, "policy-invalid")
    assert found["policy"]["images"]["registries"] == ["reg.example.com"]


def test_show_tells_that_an_edit_waits_for_the_next_hook(site: Installation) -> None:
    Path(site.policy).write_text(POLICY.replace("/shared/w", "/shared/other"))
    found = shown(site)
    assert (found["file"], found["problem"], found["policy"]["paths"]["store"]) == (site.policy, None, "/shared/other")


def test_show_works_before_any_hook_ran(tmp_path: Path) -> None:
    site = installed(tmp_path)
    assert shown(site)["file"] == site.policy
    assert not Path(site.var).exists()


def test_show_mentions_the_off_switch(site: Installation) -> None:
    Path(site.off_switch).touch()
    assert shown(site)["off"] is True


def test_show_without_any_policy_is_status_2(tmp_path: Path) -> None:
    result = run(Installation(str(tmp_path)), "policy", "show")
    assert (result.exit_code, result.stdout) == (2, "")

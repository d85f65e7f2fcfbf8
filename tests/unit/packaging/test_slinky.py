"""What is applied in Kubernetes fits itself: hooks, time-outs, accounts and policy. No cluster."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lib.command_line import installed
from warmstart import plan
from warmstart.ending import harvesting
from warmstart.entry import timers
from warmstart.policy.current import current_policy

PACKAGING = Path(__file__).parents[3] / "packaging"


@pytest.fixture
def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((PACKAGING / "slinky/values.yaml").read_text())
    return found


def test_each_script_runs_our_hook(values: dict[str, Any]) -> None:
    for key, name in (("prologScripts", "prolog"), ("epilogScripts", "epilog")):
        (script,) = values[key].values()
        assert script.endswith(f"exec /usr/libexec/warmstart/{name}\n")


def test_the_policy_is_one_and_slurm_waits_for_its_budgets(values: dict[str, Any], tmp_path: Path) -> None:
    (text,) = (item["data"]["policy.yaml"] for item in values["extraObjects"] if item["kind"] == "ConfigMap")
    own = "store_user: daemon\nimport_user: bin\nvalidate_user: sys\n"  # accounts of any host
    policy = current_policy(installed(tmp_path, text + own), keep=True).policy
    slurm = dict(line.split("=", 1) for line in values["controller"]["extraConf"].splitlines())
    assert int(slurm["PrologEpilogTimeout"]) > max(plan.prolog_budget(policy), harvesting.epilog_budget(policy))
    mounts = {mount["mountPath"] for mount in values["nodesets"]["gpu"]["slurmd"]["volumeMounts"]}
    assert {policy.paths.workspace, policy.paths.store, "/var/lib/warmstart"} <= mounts
    assert f"workspace={policy.paths.workspace}" in (PACKAGING / "slinky/Dockerfile").read_text()


def test_what_hooks_read_is_copied_of_the_config_map(values: dict[str, Any], tmp_path: Path) -> None:
    """A ConfigMap's files are links, which hooks refuse; here it has a policy, and then `off` in its place."""
    (copier,) = values["nodesets"]["gpu"]["podSpec"]["initContainers"]
    script = copier["args"][0].replace("sleep 10", "exit")
    for name in ("policy", "configmap"):
        (tmp_path / name).mkdir(mode=0o777)
        script = script.replace(f"/{name}/", f"{tmp_path}/{name}/").replace(f"/{name}\n", f"{tmp_path}/{name}\n")
    for name, text in (("policy.yaml", "version: 1\n"), ("off", "")):
        (tmp_path / "real").write_text(text)
        (tmp_path / "configmap" / name).symlink_to(tmp_path / "real")
        subprocess.run([*copier["command"], script], check=True)
        (copy,) = (tmp_path / "policy").iterdir()
        assert (copy.name, copy.is_symlink(), copy.read_text()) == (name, False, text)
        (tmp_path / "configmap" / name).unlink()
    assert (tmp_path / "policy").stat().st_mode & 0o777 == 0o755


def test_a_pod_waits_for_the_last_maintenance(values: dict[str, Any]) -> None:
    """The supervisor does so for longer than it may take, and the pod for longer than the supervisor."""
    stop = int(re.findall(r"^stopwaitsecs=(\d+)$", (PACKAGING / "slinky/timers.conf").read_text(), re.MULTILINE)[0])
    last = timers.LAST_S + timers.STOP_S
    assert last < stop < values["nodesets"]["gpu"]["podSpec"]["terminationGracePeriodSeconds"]


def test_accounts_have_the_ids_of_the_packages() -> None:
    users = re.findall(r"^u (\S+) (\d+)", (PACKAGING / "sysusers.d/warmstart.conf").read_text(), re.MULTILINE)
    assert len(users) == 3
    assert {f"{name}:{uid}" for name, uid in users} <= {
        *(PACKAGING / "slinky/Dockerfile").read_text().replace(";", " ").split()
    }

"""What is applied in Kubernetes fits itself: hooks, time-outs, accounts and policy. No cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lib.command_line import installed
from tests.lib.requirements import unavailable
from warmstart import plan
from warmstart.entry import timers
from warmstart.policy.current import current_policy

PACKAGING = Path(__file__).parents[3] / "packaging"
# What the chart `slurm` 1.3.0-rc1 (August 2026) has in its values.yaml; in a pod's spec, what Kubernetes has.
CHART = [
    "prologScripts",
    "epilogScripts",
    "configFiles",
    "controller.extraConf",
    "extraObjects",
    "nodesets.*.slurmd.image.repository",
    "nodesets.*.slurmd.image.tag",
    "nodesets.*.slurmd.env",
    "nodesets.*.slurmd.volumeMounts",
    "nodesets.*.podSpec.terminationGracePeriodSeconds",
    "nodesets.*.podSpec.volumes",
    "loginsets.*.login.image.repository",
    "loginsets.*.login.image.tag",
]


@pytest.fixture
def values() -> dict[str, Any]:
    """Return the values for the chart."""
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
    assert int(slurm["PrologEpilogTimeout"]) > max(plan.prolog_budget(policy), plan.epilog_budget(policy))
    mounts = {mount["mountPath"] for mount in values["nodesets"]["gpu"]["slurmd"]["volumeMounts"]}
    assert {policy.paths.workspace, policy.paths.store, "/var/lib/warmstart"} <= mounts
    assert f"workspace={policy.paths.workspace}" in (PACKAGING / "slinky/Dockerfile").read_text()


def test_a_pod_waits_for_the_last_maintenance(values: dict[str, Any]) -> None:
    """The supervisor does so for longer than it may take, and the pod for longer than the supervisor."""
    stop = int(re.findall(r"^stopwaitsecs=(\d+)$", (PACKAGING / "slinky/timers.conf").read_text(), re.MULTILINE)[0])
    last = timers.LAST_S + timers.STOP_S
    assert last < stop < values["nodesets"]["gpu"]["podSpec"]["terminationGracePeriodSeconds"]


def leaves(value: object, names: str = "") -> Iterator[str]:
    """Yield the names of values that the chart takes as they are, with a star for a name that a user chooses."""
    if names in CHART or not isinstance(value, dict):
        yield names
        return
    for name, below in value.items():
        is_chosen = names in ("nodesets", "loginsets")
        yield from leaves(below, f"{names}.{'*' if is_chosen else name}".lstrip("."))


def test_each_value_is_one_of_the_charts(values: dict[str, Any]) -> None:
    assert sorted(set(leaves(values))) == sorted(CHART)


def test_what_is_mounted_is_a_volume(values: dict[str, Any]) -> None:
    (job,) = (item for item in values["extraObjects"] if item["kind"] == "CronJob")
    gpu, pod = values["nodesets"]["gpu"], job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    for mounts, volumes in (
        (gpu["slurmd"]["volumeMounts"], gpu["podSpec"]["volumes"]),
        (pod["containers"][0]["volumeMounts"], pod["volumes"]),
    ):
        assert {mount["name"] for mount in mounts} == {volume["name"] for volume in volumes}
        assert all(set(mount) <= {"name", "mountPath", "readOnly", "subPathExpr"} for mount in mounts)
        maps = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
        assert maps == [item["metadata"]["name"] for item in values["extraObjects"] if item["kind"] == "ConfigMap"]


def test_shellcheck_has_nothing_to_say(values: dict[str, Any], tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        unavailable("shellcheck is not installed")
    text = (PACKAGING / "slinky/Dockerfile").read_text().replace("\\\n", "")
    scripts = [f"#!/bin/sh\n{command}\n" for command in re.findall(r"^RUN (.*)$", text, re.MULTILINE)]
    assert len(scripts) == 6
    scripts += [script for key in ("prologScripts", "epilogScripts") for script in values[key].values()]
    for number, script in enumerate(scripts):
        (tmp_path / str(number)).write_text(script)
    paths = [str(tmp_path / str(number)) for number in range(len(scripts))]
    done = subprocess.run(["shellcheck", *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_accounts_have_the_ids_of_the_packages() -> None:
    users = re.findall(r"^u (\S+) (\d+)", (PACKAGING / "sysusers.d/warmstart.conf").read_text(), re.MULTILINE)
    assert len(users) == 3
    assert {f"{name}:{uid}" for name, uid in users} <= {
        *(PACKAGING / "slinky/Dockerfile").read_text().replace(";", " ").split()
    }

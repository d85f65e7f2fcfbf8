"""`warmstart doctor` on a real node: the cluster's own slurm.conf, the site's store and policy."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lib import spank
from tests.lib.accounts import ALICE
from tests.lib.site import Site


def run_a_job(site: Site) -> None:
    """Run a job, so that its hooks put the policy into force."""
    site.cluster.wait(site.cluster.submit("#!/bin/sh\ntrue\n", ALICE))


def examined(site: Site, slurm_conf: Path | None = None) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit status and the findings by their check."""
    done = site.command("doctor", "--json", "--slurm-conf", str(slurm_conf or site.cluster.base / "etc/slurm.conf"))
    assert done.stderr == ""
    return done.returncode, {found["check"]: found for found in json.loads(done.stdout)["findings"]}


def test_a_real_site(site: Site) -> None:
    """The recommended settings of Slurm pass, and the probes leave nothing behind."""
    run_a_job(site)
    _, found = examined(site)
    groups = {name: row for name, row in found.items() if row["status"] in ("wrong", "critical")}
    assert not {name for name in groups if name.startswith(("slurm.", "policy."))}, groups
    for name in ("store.reachable", "store.owner", "store.writers", "store.locks", "store.links", "store.clock"):
        assert found[name]["status"] == "ok", found[name]
    assert (found["store.root"]["status"], found["node.programs"]["status"]) == ("advice", "ok")
    assert not [name for name in os.listdir(site.store) if name.startswith(".doctor")]
    assert not [name for name in os.listdir(site.workspace) if name.startswith(".doctor")]


def test_slurm_in_another_place(site: Site) -> None:
    """Doctor finds slurm.conf and the release as slurmctld and the commands tell them: here scontrol is a wrapper."""
    run_a_job(site)
    conf, scontrol = site.cluster.base / "etc/slurm.conf", site.cluster.base / "opt/bin/scontrol"
    scontrol.parent.mkdir(parents=True)
    scontrol.write_text(f'#!/bin/sh\nexport SLURM_CONF={conf}\nexec /usr/bin/scontrol "$@"\n')
    scontrol.chmod(0o755)
    (told,) = re.findall(r"\d+\.\d+", site.cluster.admin("scontrol", "-V"))
    policy = site.etc / "policy.yaml"
    policy.write_text(policy.read_text().replace("\npaths:\n", f"\npaths:\n  scontrol: {scontrol}\n", 1))
    findings = json.loads(site.command("doctor", "--json").stdout)["findings"]
    found = {row["check"]: (row["status"], row["found"]) for row in findings}
    assert found["slurm.conf"] == ("ok", f"read {conf} of Slurm {told}")
    assert (found["slurm.running"][0], found["slurm.prolog"][0]) == ("ok", "ok")


PLANTED = {
    "warmstart.conf": {
        "slurm.prolog": ("\nProlog=.*", "\nProlog=/bin/true"),
        "slurm.prolog-flags": ("PrologFlags=.*", "PrologFlags=Alloc"),
        "slurm.prolog-timeout": ("PrologEpilogTimeout=.*", "PrologEpilogTimeout=5"),
        "slurm.task-prolog": ("TaskProlog=.*", "TaskProlog=/bin/true"),
    },
    "plugstack.conf": {"slurm.spank": ("$", "optional {other} workspace={workspace}\n")},
    "job_container.conf": {"slurm.constant-path": ("$", "BasePath=/srv/containers\nCloneNSScript={hook}\n")},
}


def test_planted_mistakes(site: Site, tmp_path: Path) -> None:
    """With the plugin of this release nothing is wrong; each mistake in copies of Slurm's files is told."""
    spank.need()
    (tmp_path / "plugin.c").write_text("const unsigned int plugin_version = 21 << 16 | 8 << 8;\n")
    other = tmp_path / "warmstart.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", other, tmp_path / "plugin.c"], check=True)
    names = {"other": other, "workspace": site.workspace, "cache": site.constant}
    names["hook"] = site.cluster.prefix / "libexec/warmstart/job-container"
    base = site.cluster.base / "etc"
    with spank.loaded(site):
        site.write_policy(constant="spank")
        run_a_job(site)
        assert [found["status"] for name, found in examined(site)[1].items() if name == "slurm.spank"] == ["ok"]
        files = {name: (base / name).read_text() for name in ("slurm.conf", "warmstart.conf")}
    site.write_policy(constant="namespace")
    run_a_job(site)
    for name, mistakes in PLANTED.items():
        copy = tmp_path / name.partition(".")[0]
        copy.mkdir()
        texts = {**files, "plugstack.conf": "", "job_container.conf": ""}
        for old, new in mistakes.values():
            texts[name] = re.sub(old, new.format(**names), texts[name], count=1)
        texts["slurm.conf"] = re.sub("PlugStackConfig=.*", "JobContainerType=job_container/tmpfs", texts["slurm.conf"])
        for file, text in texts.items():
            (copy / file).write_text(text)
        status, found = examined(site, copy / "slurm.conf")
        assert (status, *(found[check]["status"] for check in mistakes)) == (1, *(["wrong"] * len(mistakes))), found


@pytest.mark.threat(6)
def test_a_store_that_everybody_can_write_and_a_broken_edit(site: Site) -> None:
    """Both are critical, and the exit status says so."""
    run_a_job(site)
    site.store.chmod(0o777)
    policy = site.etc / "policy.yaml"
    policy.write_text(f"{policy.read_text()}\nno_such_key: 1\n")
    try:
        status, found = examined(site)
    finally:
        site.store.chmod(0o755)
    assert status == 2
    assert found["store.writers"]["status"] == "critical"
    assert found["policy.in-force"]["status"] == "critical"
    assert "no_such_key" in found["policy.in-force"]["found"]

"""`warmstart doctor` on a real node: the cluster's own slurmctld, the site's store and policy."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.lib import spank
from tests.lib.accounts import ALICE
from tests.lib.site import Site


def run_a_job(site: Site) -> None:
    """Run a job, so that its hooks put the policy into force."""
    site.cluster.wait(site.cluster.submit("#!/bin/sh\ntrue\n", ALICE))


def examined(site: Site) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit status and the findings by their check."""
    done = site.command("doctor", "--json", env={"SLURM_CONF": str(site.cluster.base / "etc/slurm.conf")})
    assert done.stderr == ""
    return done.returncode, {found["check"]: found for found in json.loads(done.stdout)["findings"]}


def test_a_real_site(site: Site) -> None:
    """The recommended settings of Slurm pass, with the plugin of this release, and the probes leave nothing behind."""
    spank.need()
    with spank.loaded(site):
        site.write_policy(constant="spank")
        run_a_job(site)
        _, found = examined(site)
    assert found["slurm.spank"]["status"] == "ok"
    groups = {name: row for name, row in found.items() if row["status"] in ("wrong", "critical")}
    assert not {name for name in groups if name.startswith(("slurm.", "policy."))}, groups
    for name in ("store.owner", "store.permissions", "store.features", "store.clock"):
        assert found[name]["status"] == "ok", found[name]
    assert (found["store.root"]["status"], found["node.programs"]["status"]) == ("advice", "ok")
    assert not [name for name in os.listdir(site.store) if name.startswith(".doctor")]
    assert not [name for name in os.listdir(site.workspace) if name.startswith(".doctor")]


def test_slurm_in_another_place(site: Site) -> None:
    """Doctor asks the slurmctld of the policy's scontrol, which is a wrapper here."""
    run_a_job(site)
    conf, scontrol = site.cluster.base / "etc/slurm.conf", site.cluster.base / "opt/bin/scontrol"
    scontrol.parent.mkdir(parents=True)
    scontrol.write_text(f'#!/bin/sh\nexport SLURM_CONF={conf}\nexec /usr/bin/scontrol "$@"\n')
    scontrol.chmod(0o755)
    policy = site.etc / "policy.yaml"
    policy.write_text(policy.read_text().replace("\npaths:\n", f"\npaths:\n  scontrol: {scontrol}\n", 1))
    findings = json.loads(site.command("doctor", "--json").stdout)["findings"]
    found = {row["check"]: (row["status"], row["found"]) for row in findings}
    assert found["slurm.hooks"] == ("ok", "")


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
    assert found["store.permissions"]["status"] == "critical"
    assert found["policy.in-force"]["status"] == "critical"
    assert "no_such_key" in found["policy.in-force"]["found"]

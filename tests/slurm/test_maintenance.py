"""`warmstart maintain` beside a real slurmd: live jobs are left alone, runs without an epilog are finished."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE
from tests.lib.processes import wait_until
from warmstart.host.deadline import after
from warmstart.slurm import commands
from warmstart.slurm.facts import Access
from warmstart.slurm.slurmctld import LookUpFailed, Slurmctld

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lib.site import Site

SCONTROL = "/usr/bin/scontrol"


def maintain(site: Site, conf: str, status: int = 0) -> str:
    """Run the installed program for n1, with this cluster's controller. Return what it printed."""
    argv = [*site.cluster.enter("n1"), f"{site.cluster.prefix}/bin/warmstart", "maintain", "--node", "n1"]
    done = subprocess.run(argv, env={"SLURM_CONF": conf}, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.threat(33)
def test_a_live_job_is_left_and_a_dead_one_finished(site: Site) -> None:
    """Alive by its step daemon; over by the controller's answer, though its run is still there."""
    conf = str(site.cluster.base / "etc" / "slurm.conf")
    job_id = site.cluster.submit("#!/bin/sh\nexec sleep 600\n", ALICE, "--nodelist=n1")
    site.cluster.wait_for(job_id, {"RUNNING"})
    state: Path = site.runtime("n1") / "state" / str(job_id)
    kept = site.cluster.base / "kept"
    try:
        wait_until("the step daemon", lambda: job_id in commands.with_daemons(), 30)
        slurmctld = Slurmctld(Access(SCONTROL, conf))
        live = slurmctld.job(job_id, after(30))
        assert live is not None
        assert (live.state, live.array) == ("RUNNING", "")
        assert slurmctld.job(99_999_999, after(30)) is None
        assert [slurmctld.knows_node(node, after(30)) for node in ("n1", "n99")] == [True, False]
        nobody = Slurmctld(Access(SCONTROL, "/nowhere/slurm.conf"))
        with pytest.raises(LookUpFailed):
            nobody.job(job_id, after(1))
        with pytest.raises(LookUpFailed):
            nobody.knows_node("n99", after(1))
        maintain(site, conf)
        assert (state / "run.json").exists()
        shutil.copytree(state, kept)
    finally:
        site.cluster.cancel(job_id)
    site.cluster.wait_idle()
    assert not state.exists()
    shutil.copytree(kept, state)  # as if slurmd had died before its epilog
    shutil.rmtree(kept)
    maintain(site, "/nowhere/slurm.conf")
    assert state.exists()

    def is_finished() -> bool:
        maintain(site, conf)
        return not state.exists()

    wait_until("its end, once no other cluster on this host has a job of that number", is_finished, 60)
    assert len(site.events(job_id, "run.abandoned")) == 1
    metrics = (site.metrics / "warmstart.prom").read_text()
    assert 'warmstart_hook_runs_total{hook="maintain",outcome="ok"}' in metrics
    assert 'warmstart_cache_uses_total{profile="numba",use="untouched"}' in metrics
    assert 'warmstart_maintenance_last_success_timestamp_seconds{node="n1"}' in metrics


@pytest.mark.threat(36)
def test_an_account_that_slurm_does_not_enforce(site: Site) -> None:
    """`sbatch -A ml` on this cluster, whose slurmctld enforces nothing: seeded from the user's scope alone, loudly."""
    conf = str(site.cluster.base / "etc" / "slurm.conf")
    site.write_policy("trust: {account: enforced}\nrules:\n  - {name: ml, profiles: [numba], scope: account}\n")
    told = " ".join(maintain(site, conf, status=1).split())  # which remembers for hooks what slurmctld enforces
    assert "trust.account is enforced in the policy, but" in told
    job_id = site.cluster.submit("#!/bin/sh\nexec sleep 600\n", ALICE, "--nodelist=n1", "--account=ml")
    site.cluster.wait_for(job_id, {"RUNNING"})
    try:
        wait_until("the run", (run := site.runtime("n1") / "state" / str(job_id) / "run.json").exists, 30)
        assert [scope.partition("-")[0] for scope in json.loads(run.read_text())["own"]["read_scopes"]] == ["user"]
        assert json.loads((site.var / "enforcement.json").read_text())["words"] == []
    finally:
        site.cluster.cancel(job_id)
    site.cluster.wait_idle()
    (problem,) = {failure["reason"] for failure in site.failures(job_id) if failure["code"] == "trust-unproven"}
    assert "AccountingStorageEnforce is none, without associations" in problem

"""`warmstart maintain` beside a real slurmd: live jobs are left alone, runs without an epilog are finished."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.accounts import ALICE
from tests.cluster.processes import wait_until
from warmstart.host.deadline import after
from warmstart.slurm import commands
from warmstart.slurm.facts import Access
from warmstart.slurm.slurmctld import LookUpFailed, Slurmctld

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.site import Site

SCONTROL = "/usr/bin/scontrol"


def maintain(site: Site, conf: str, status: int = 0) -> str:
    """Run the installed program for n1, with this cluster's controller. Return what it printed."""
    argv = [f"{site.cluster.prefix}/bin/warmstart", "maintain", "--node", "n1"]
    done = subprocess.run(argv, env={"SLURM_CONF": conf}, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.threat(33)
def test_a_live_job_is_left_and_a_dead_one_finished(site: Site) -> None:
    """Alive by its step daemon; over by the controller's answer, though its record is still there."""
    conf = str(site.cluster.base / "etc" / "slurm.conf")
    job_id = site.cluster.submit("#!/bin/sh\nexec sleep 600\n", ALICE, "--nodelist=n1")
    site.cluster.wait_for(job_id, {"RUNNING"})
    state: Path = site.var / "n1" / "state" / str(job_id)
    kept = site.cluster.base / "kept"
    try:
        wait_until("the step daemon", lambda: job_id in commands.with_daemons(), 30)
        slurmctld = Slurmctld(Access(SCONTROL, conf))
        live = slurmctld.job(job_id, after(30))
        assert live is not None
        assert (live.state, live.array) == ("RUNNING", "")
        assert slurmctld.job(99_999_999, after(30)) is None
        with pytest.raises(LookUpFailed):
            Slurmctld(Access(SCONTROL, "/nowhere/slurm.conf")).job(job_id, after(30))
        maintain(site, conf)
        assert (state / "record.json").exists()
        shutil.copytree(state, kept)
    finally:
        site.cluster.cancel(job_id)
    site.cluster.wait_idle()
    assert not state.exists()
    # Another test's cluster on this host may have a job of that number.
    wait_until("the step daemon's end", lambda: job_id not in commands.with_daemons(), 60)
    shutil.copytree(kept, state)  # as if slurmd had died before its epilog
    shutil.rmtree(kept)
    maintain(site, "/nowhere/slurm.conf")
    assert state.exists()
    maintain(site, conf)
    assert not state.exists()
    abandoned: list[dict[str, Any]] = site.events(job_id, "run.abandoned")
    assert [event["rebooted"] for event in abandoned] == [False]
    metrics = (site.metrics / "warmstart.prom").read_text()
    assert 'warmstart_hook_runs_total{hook="maintain",outcome="ok"}' in metrics
    assert 'warmstart_cache_starts_total{profile="numba",result="cold"}' in metrics
    assert 'warmstart_maintenance_last_success_timestamp_seconds{node="n1"}' in metrics


def test_what_a_node_left_goes_when_the_cluster_has_forgotten_its_name(site: Site, tmp_path: Path) -> None:
    """A month after its last job, with its mounts; never while slurmctld knows it or is silent, or something waits."""
    conf, workspace = str(site.cluster.base / "etc" / "slurm.conf"), site.workspace
    for node in ("gone", "new", "busy"):
        for place in ("state", "layers/copy", "bundles", "spool", "locks"):
            (site.var / node / place).mkdir(parents=True)
        (workspace / node / "layers").mkdir(parents=True)
    (site.var / "busy/spool/bundle").touch()
    known = site.var / "n4/state"
    known.mkdir(parents=True, exist_ok=True)
    for state in (site.var / "gone/state", site.var / "busy/state", known):
        os.utime(state, (1, 1))
    (tmp_path / "of another").touch()
    subprocess.run(["mount", "--bind", tmp_path, site.var / "gone/layers/copy"], check=True)
    argv = [f"{site.cluster.prefix}/bin/warmstart", "maintain"]
    try:
        for path in ("/nowhere/slurm.conf", conf):
            assert (site.var / "gone/state").exists()
            subprocess.run(argv, env={"SLURM_CONF": path}, capture_output=True, text=True, check=False)
        assert not (site.var / "gone").exists()
        assert not (workspace / "gone").exists()
        assert (tmp_path / "of another").exists()
        assert known.exists()
        assert (site.var / "busy/spool/bundle").exists()
        assert (workspace / "new/layers").exists()
        told = [event["path"] for event in site.audit("--event", "orphan.removed") if event["kind"] == "node"]
        assert told == [str(workspace / "gone"), str(site.var / "gone")]
    finally:
        for node in ("new", "busy", "gone"):
            shutil.rmtree(site.var / node, ignore_errors=True)
            shutil.rmtree(workspace / node, ignore_errors=True)


@pytest.mark.threat(36)
def test_an_account_that_slurm_does_not_enforce(site: Site) -> None:
    """`sbatch -A ml` on this cluster, whose slurmctld enforces nothing: seeded from the user's scope alone, loudly."""
    conf = str(site.cluster.base / "etc" / "slurm.conf")
    site.write_policy("trust: {account: enforced}\nrules:\n  - {name: ml, profiles: [numba], scope: account}\n")
    job_id = site.cluster.submit("#!/bin/sh\nexec sleep 600\n", ALICE, "--nodelist=n1", "--account=ml")
    site.cluster.wait_for(job_id, {"RUNNING"})
    try:
        wait_until("the record", (record := site.var / "n1" / "state" / str(job_id) / "record.json").exists, 30)
        assert [scope.partition("-")[0] for scope in json.loads(record.read_text())["read_scopes"]] == ["user"]
        assert json.loads((site.var / "enforcement.json").read_text())["words"] == []
    finally:
        site.cluster.cancel(job_id)
    site.cluster.wait_idle()
    (problem,) = {
        event["error"]["reason"] for event in site.audit("--job", str(job_id)) if "unproven" in event["event"]
    }
    assert "AccountingStorageEnforce is none, without associations" in problem
    assert "trust.account is enforced in the policy, but" in " ".join(maintain(site, conf, status=1).split())

"""Nodes that are privileged pods of Slurm in Kubernetes: started, killed under running jobs, and replaced.

Run by `test_pods`, in a root file system that has supervisord.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lib import spank
from tests.lib.accounts import ALICE
from tests.lib.pods import PodCluster
from tests.lib.processes import wait_until
from tests.lib.registry import Registry
from tests.lib.shell_profiles import profiles
from tests.lib.site import Site

BEGIN = '#!/bin/sh\ncd "$WARMSTART_CACHE"/pod* && ls\n'
MAKE = f"{BEGIN}head -c 9000 /dev/urandom >made.bin\n"
SHOW = f'{BEGIN}grep "$PWD" /proc/self/mountinfo\n'
WAIT = f"{BEGIN}[ -e {{go}} ] || touch {{here}}\nwhile [ ! -e {{go}} ]; do sleep 0.1; done\n"


@pytest.fixture(scope="session")
def cluster(capable_host: None) -> Iterator[PodCluster]:
    running = PodCluster()
    with running:
        yield running


@pytest.fixture(scope="session")
def installed(cluster: PodCluster, registry: Registry) -> Iterator[Site]:
    """Return the session's site, with the SPANK plugin. In its pods warmstart's programs run."""
    made = Site(cluster, registry.url)
    with spank.loaded(made):
        wait_until("the timers", lambda: all(cluster.inside(node, "timers") for node in cluster.nodes), 60)
        yield made


@pytest.fixture
def profile(site: Site, request: pytest.FixtureRequest) -> str:
    """Put a policy in force with a profile that no other test has, and so no entries; return its name."""
    name = f"pod{request.session.items.index(request.node)}"
    rules = f"{profiles(**{name: '*.bin'})}rules: [{{name: all, profiles: [{name}]}}]\n"
    site.write_policy(rules, constant="spank")
    return name


def run(site: Site, script: str, node: str) -> tuple[int, str]:
    """Run a job on a node; return its id and output."""
    job = site.cluster.submit(script, ALICE, f"--nodelist={node}")
    return job, output_of(site, job)


def output_of(site: Site, job: int) -> str:
    """Wait for a job's end and return its output."""
    ended = site.cluster.wait(job, 120)
    site.wait_imports()
    assert ended.state == "COMPLETED", ended
    return ended.output


def loops(cluster: PodCluster, node: str) -> list[str]:
    """Return the files on a pod's own volume that have loop devices; one is named more than once if it has several."""
    argv = ["/sbin/losetup", "--list", "--noheadings", "--output=BACK-FILE"]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if f"/{node}/" in line and str(cluster.base) in line]


def program(cluster: PodCluster, node: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return cluster.in_pod(node, f"{cluster.prefix}/bin/warmstart", *arguments)


def found(cluster: PodCluster, node: str) -> dict[str, Any]:
    """Return doctor's findings in a pod by their check: those that are not ok."""
    told = json.loads(program(cluster, node, "doctor", "--json").stdout)
    return {finding["check"]: finding for finding in told["findings"] if finding["status"] != "ok"}


def held(site: Site, node: str) -> tuple[int, Path]:
    """Start a job that waits in a pod; return its id, and the file that lets it go on."""
    home = site.cluster.account(ALICE).home
    here, go = (home / f"{name}{len(os.listdir(home))}" for name in ("here", "go"))
    job = site.cluster.submit(WAIT.format(go=go, here=here), ALICE, f"--nodelist={node}", "--requeue")
    wait_until("the job", here.exists, 60)
    return job, go


def test_a_job_is_cold_in_one_pod_and_warm_in_another(site: Site, cluster: PodCluster, profile: str) -> None:
    """By an overlay, on a loop device of which the pod's /dev has no node. Maintenance runs, and doctor is content."""
    cold, output = run(site, MAKE, "n1")
    assert output == ""
    warm, output = run(site, SHOW, "n2")
    assert output.splitlines()[0] == "made.bin"
    assert " - overlay " in output
    assert not site.remarks(cold) + site.remarks(warm)
    assert cluster.in_pod("n2", "ls", "/dev").stdout.count("loop") == 1  # loop-control
    for arguments in (("--node", "n1"), ("--store",)):
        assert program(cluster, "n1", "maintain", *arguments).returncode == 0
    # The store of these tests is a directory of this host, whose disk may be full.
    assert set(found(cluster, "n1")) - {"store.space", "node.disks"} == {"store.mount", "store.root"}


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "emptyDir"])
def test_a_pod_is_killed_under_a_job(site: Site, cluster: PodCluster, profile: str, is_kept: bool) -> None:
    """The job is queued again, and runs in the pod's successor, which shows it nothing of the run before."""
    run(site, MAKE, "n2")
    job, go = held(site, "n1")
    assert loops(cluster, "n1")
    cluster.kill_slurmd("n1")
    cluster.admin("scontrol", "update", "nodename=n1", "state=down", "reason=its pod ends")  # as Slinky's PreStop
    wait_until("the end of its loop devices", lambda: not loops(cluster, "n1"), 20)
    before = {path.name for path in (site.workspace / "n1").glob(f"{job}.*")}
    assert before
    if not is_kept:
        cluster.empty_volume("n1")
    go.touch()
    cluster.start_slurmd("n1")
    if "n1" in cluster.drained():
        cluster.resume("n1")
    wait_until("its requeueing", lambda: cluster.job(job).restarts == 1, 60)
    # Slurm waits two minutes: what it still tells the node about the run before would end one that begins at once.
    wait_until("the node", lambda: cluster.node_states()["n1"].state == "idle", 60)
    cluster.admin("scontrol", "update", f"jobid={job}", "starttime=now+5")
    assert output_of(site, job).split() == ["made.bin"]
    assert program(cluster, "n1", "maintain", "--node", "n1").returncode == 0
    assert not before & set(site.runs("n1"))
    assert not list((site.runtime("n1") / "state").iterdir())


def test_a_pod_ends(site: Site, cluster: PodCluster, profile: str) -> None:
    """In order: what waits for the store goes there, and the pod's log counts what is left."""
    away = site.store.rename(site.store.with_name("away"))
    made = cluster.submit(MAKE, ALICE, "--nodelist=n4")
    cluster.wait(made, 120)
    away.rename(site.store)
    assert list((site.runtime("n4") / "queue/endings").iterdir())
    job, go = held(site, "n4")
    wait_until("their lock", lambda: Path(site.var, "n4/kept").exists(), 20)
    other = f"mount --bind {cluster.volume('n4')}/state {site.var} && exec {site.cluster.prefix}/bin/warmstart"
    argv = ["unshare", "--mount", "sh", "-c", f"{other} maintain --node n4"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, "is kept by another pod" in done.stdout + done.stderr) == (1, True), done
    cluster.end_pod("n4")
    assert not list(site.runtime("n4").glob("queue/endings/*"))
    log = (cluster.base / "log" / "pod.n4.out").read_text()
    assert "node n4 leaves 1 runs without an epilog, and 0 items of its queue" in log
    assert not loops(cluster, "n4")
    go.touch()
    cluster.start_slurmd("n4")
    cluster.cancel(job)
    cluster.wait(job)
    assert run(site, SHOW, "n4")[1].split()[0] == "made.bin"

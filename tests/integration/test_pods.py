"""Nodes of real Slurm that are privileged pods: they start, are killed under running jobs, and are replaced."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster import pods
from tests.cluster.accounts import ALICE
from tests.cluster.pods import Pod
from tests.cluster.processes import parents, wait_until
from tests.cluster.site import Site
from tests.support.shell_profiles import profiles

# They rely on nodes that no other file's jobs have used: in a site that is shared their clean-up finds others' mounts.
pytestmark = pytest.mark.sweep

# Each test has a profile of its own, and so entries that no other test's jobs have made.
BEGIN = '#!/bin/sh\ncd "$WARMSTART_CACHE"/pod* && ls\n'
MAKE = f"{BEGIN}head -c 9000 /dev/urandom >made.bin\n"
SHOW = f'{BEGIN}grep "$PWD" /proc/self/mountinfo\n'
WAIT = f"{BEGIN}[ -e {{go}} ] || touch {{here}}\nwhile [ ! -e {{go}} ]; do sleep 0.1; done\n"


class Nodes:
    """Pods in the place of nodes."""

    def __init__(self, site: Site, stack: ExitStack) -> None:
        self._site, self._stack = site, stack
        self.pods: dict[str, Pod] = {}

    def start(self, name: str) -> Pod:
        """Start a pod for a node."""
        self.pods[name] = pod = self._stack.enter_context(pods.started())
        self._site.cluster.move_node(name, pod.enter)
        return pod


@pytest.fixture
def nodes(site: Site, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Yield a way to start pods; afterwards the nodes are where they were."""
    profile = f"pod{request.session.items.index(request.node)}"
    site.write_policy(f"{profiles(**{profile: '*.bin'})}rules: [{{name: all, profiles: [{profile}]}}]\n")
    with ExitStack() as stack:
        made = Nodes(site, stack)
        yield made
        for name, pod in made.pods.items():
            pod.kill()
            site.cluster.move_node(name)
    for name in made.pods:
        if name in site.cluster.drained():
            site.cluster.resume(name)


def run(site: Site, script: str, node: str) -> tuple[int, str]:
    """Run a job on a node; return its id and output."""
    job = site.cluster.submit(script, ALICE, f"--nodelist={node}")
    return job, output_of(site, job)


def output_of(site: Site, job: int) -> str:
    """Wait for a job's end and return its output."""
    ended = site.cluster.wait(job, 120)
    assert ended.state == "COMPLETED", ended
    site.wait_imports()
    return ended.output


def loops(site: Site) -> str:
    """Return the loop devices of this site's files."""
    shown = subprocess.run(["/sbin/losetup", "-l", "-n"], capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in shown.splitlines() if str(site.cluster.base) in line)


def test_a_job_is_cold_in_one_pod_and_warm_in_another(site: Site, nodes: Nodes) -> None:
    """By an overlay on a loop device of which their /dev has no node, and doctor finds nothing against it."""
    for name in ("n1", "n2"):
        nodes.start(name)
    cold, output = run(site, MAKE, "n1")
    assert output == ""
    warm, output = run(site, SHOW, "n2")
    assert output.splitlines()[0] == "made.bin"
    assert " - overlay " in output
    assert not site.events(cold, "overlay.failed") + site.events(warm, "overlay.failed")
    told = nodes.pods["n2"].run(f"{site.cluster.prefix}/bin/warmstart", "doctor", "--json")
    found = {finding["check"]: finding["status"] for finding in json.loads(told.stdout)["findings"]}
    assert [found[f"node.{name}"] for name in ("seeding", "image-limits", "keeper")] == ["ok"] * 3


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "emptyDir"])
def test_a_pod_is_killed_under_a_job(site: Site, nodes: Nodes, is_kept: bool) -> None:
    """The job is queued again, and runs in the pod's successor, which shows it nothing of the run before."""
    go, here = site.cluster.base / f"go-{is_kept}", site.cluster.base / f"here-{is_kept}"
    home = site.cluster.account(ALICE).home
    here = home / here.name
    pod = nodes.start("n1")
    run(site, MAKE, "n2")
    job = site.cluster.submit(WAIT.format(go=go, here=here), ALICE, "--nodelist=n1", "--requeue")
    wait_until("the job", here.exists, 60)
    assert loops(site)
    pod.kill()
    site.cluster.admin("scontrol", "update", "nodename=n1", "state=down", "reason=its pod ends")  # as Slinky's PreStop
    before = {path.name for path in (site.workspace / "n1").glob(f"{job}.*")}
    assert before
    if not is_kept:
        shutil.rmtree(site.var / "n1")
        shutil.rmtree(site.workspace / "n1")
    go.touch()
    nodes.start("n1")
    if "n1" in site.cluster.drained():
        site.cluster.resume("n1")
    wait_until("its requeueing", lambda: site.cluster.job(job).restarts == 1, 60)
    # Slurm waits two minutes: what it still tells the node about the run before would end one that begins at once.
    wait_until("the node", lambda: site.cluster.node_states()["n1"].state == "idle", 60)
    site.cluster.admin("scontrol", "update", f"jobid={job}", "starttime=now+5")
    assert output_of(site, job).split() == ["made.bin"]
    assert nodes.pods["n1"].run(f"{site.cluster.prefix}/bin/warmstart", "maintain", "--node", "n1").returncode == 0
    assert not [name for name in site.runs("n1") if name in before]
    assert not list((site.var / "n1" / "state").iterdir())
    if is_kept:
        told = site.events(job, "run.superseded") + site.events(job, "run.abandoned")
        assert [event["rebooted"] for event in told] in ([True], [])  # [] where Slurm ran the epilog of the run before


def test_what_is_mounted_ends_with_the_pod(site: Site, nodes: Nodes) -> None:
    """No loop device stays, and the successor over kept state mounts anew."""
    pod = nodes.start("n1")
    run(site, MAKE, "n2")
    assert run(site, SHOW, "n1")[1].split()[0] == "made.bin"
    assert loops(site)
    pod.kill()
    wait_until("the devices' end", lambda: not [line for line in loops(site).splitlines() if "/n1/" in line], 20)
    nodes.start("n1")
    assert run(site, SHOW, "n1")[1].split()[0] == "made.bin"


def test_timers_in_a_pod(site: Site, nodes: Nodes) -> None:
    """At the pod's end they hand on what waits for the store, as far as it is there."""
    pod = nodes.start("n1")
    run(site, SHOW.replace("grep", "true"), "n1")
    program = f"{site.cluster.prefix}/libexec/warmstart/timers"
    conf = f"SLURM_CONF={site.cluster.base}/etc/slurm.conf"
    with subprocess.Popen([*pod.enter, "/usr/bin/env", conf, program], stderr=subprocess.PIPE, text=True) as timers:
        try:
            wait_until("their lock", lambda: Path(site.var, "n1/locks/kept").exists(), 20)
            outside = site.command("maintain", "--node", "n1")  # another container, as far as the node can tell
            assert (outside.returncode, "is kept by another pod" in outside.stdout + outside.stderr) == (1, True)
        finally:
            (inside,) = (pid for pid, parent in parents().items() if parent == timers.pid)
            os.kill(inside, signal.SIGTERM)
    assert timers.returncode == 0
    assert not list((site.var / "n1" / "journal").glob("*.done"))

"""A job whose image is not ready goes back into Slurm's queue, whatever kind of job it is, and starts when it is there.

The table: one and two nodes, a task of an array, a heterogeneous job; --no-requeue and srun fail with the same message.
`site` checks after the test that no node is drained and that no job has left anything.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.cluster import processes
from tests.cluster.accounts import ALICE, BOB, STORE
from tests.cluster.registry import Registry
from tests.cluster.site import RULES, Site
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images.imports import requests
from warmstart.paths import NodePaths
from warmstart.slurm.facts import Access, JobFacts
from warmstart.slurm.slurmctld import Slurmctld
from warmstart.wings.requeue.client import RequeueClient
from warmstart.wings.requeue.importing import WaitingJobs

SHOW = '#!/bin/sh\nunsquashfs -s "$WARMSTART_IMAGE" > /dev/null && echo found\n'


def hold_and_let_go(site: Site, job_id: int, image: str) -> None:
    """Put a pending job off, as the import does while it makes progress, and take that back."""
    access = Access("/usr/bin/scontrol", site.cluster.environment["SLURM_CONF"])
    owner = site.cluster.account(STORE)

    def shown() -> JobFacts:
        found = Slurmctld(access).job(job_id, after(30))
        assert found is not None
        return found

    with RequeueClient.of(Identity(STORE, owner.uid, owner.gid), str(site.store)) as store:
        waiting, slurms = WaitingJobs(store, access, image, "warmstart"), shown().eligible
        waiting.progressed()
        assert shown().eligible > slurms + 200
        waiting.ended()
        assert abs(shown().eligible - slurms) <= 2


def import_of(site: Site, node: str, image: str) -> int:
    """Wait until a node imports an image; return the pid."""
    paths = NodePaths(str(site.var / node), "")

    def keys() -> set[bytes]:
        return {errand.key.encode() for errand, request in requests.waiting(paths) if request.reference == image}

    found: list[int] = []

    def is_at_work() -> bool:
        found.extend(pid for pid in site.imports() if keys() & {*processes.arguments(pid)})
        return bool(found)

    processes.wait_until("the import", is_at_work, 60)
    return found[0]


@pytest.fixture
def quick(site: Site) -> Iterator[Site]:
    """Have requeued jobs start after 45 s and not after 120: so long lives the credential of a job."""
    conf = site.cluster.base / "etc" / "slurm.conf"
    text = conf.read_text()
    for wanted in (text.replace("/munge/socket\n", "/munge/socket,cred_expire=45\n"), text):
        conf.write_text(wanted)
        site.cluster.restart_slurmctld()
        for node in site.cluster.nodes:
            site.cluster.kill_slurmd(node)
            site.cluster.start_slurmd(node)
        if wanted != text:
            yield site


def test_each_kind_of_job(quick: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    """One import for all of them; none is requeued twice, no array as a whole, and no node is drained."""
    site, cluster, image, other = quick, quick.cluster, fresh_image(), fresh_image()
    wanting = f"--comment=warmstart: image={image}"
    site.write_policy(f"requeue: {{}}\n{RULES}")
    policy = site.etc / "policy.yaml"
    policy.write_text(policy.read_text().replace("wait: 60s", "wait: 5s"))
    with registry.silent():
        one = cluster.submit(SHOW, ALICE, wanting, "--nodelist=n1")
        two = cluster.submit(SHOW, BOB, wanting, "--nodelist=n1,n2")
        array = cluster.submit(SHOW, ALICE, wanting, "--array=0-1", "--nodelist=n3")
        leader = cluster.submit(SHOW, BOB, wanting, "--nodelist=n1", ":", wanting, "--nodelist=n2")
        held = cluster.submit(SHOW, BOB, f"--comment=warmstart: image={other}", "--nodelist=n4")
        its_import = import_of(site, "n4", other)
        os.kill(its_import, signal.SIGSTOP)  # the test does in its place what it would tell the job
        stubborn = cluster.submit(SHOW, ALICE, wanting, "--no-requeue", "--nodelist=n3")
        interactive = cluster.run(["srun", wanting, "--nodelist=n4", "true"], BOB)
        failed = cluster.wait(stubborn)
        names = {str(job_id) for job_id in (one, two, leader, held)} | {f"{array}_{task}" for task in range(2)}

        def requeued() -> set[str]:
            return {event["name"] for event in site.audit("--event", "job.requeued")}

        processes.wait_until("requeued jobs", lambda: names <= requeued(), 60)
        cluster.wait_idle()
        for job_id in (one, two, array, leader, leader + 1, held):
            job = cluster.job(job_id)
            assert (job.state, job.restarts, job.reason) == ("PENDING", 1, "BeginTime"), job
        assert len(site.imports()) == 2
        hold_and_let_go(site, held, other)
        os.kill(its_import, signal.SIGCONT)
    assert requeued() == names
    for output, reason in ((failed.output, "disabled"), (interactive.stdout + interactive.stderr, "Only batch jobs")):
        assert f"image {image} is still missing after" in output
        assert "imported by pid" in output
        assert "the job was not requeued: " in output
        assert reason in output
    assert (failed.state, interactive.returncode != 0) == ("FAILED", True)
    for job_id in (one, two, array, leader):
        ended = site.finish(job_id)
        assert (ended.state, ended.restarts) == ("COMPLETED", 1), ended
    for job_id in (one, two, leader, held):
        assert site.finish(job_id).output == "found\n"
    assert [event["image"] for event in site.audit("--event", "image.imported")].count(image) == 1
    site.write_policy()

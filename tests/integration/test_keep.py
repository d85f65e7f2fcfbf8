"""Kept TMPDIRs: they stay on the node after the job, for a limited time, if the policy allows it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster import mounts
from tests.cluster.accounts import ALICE, BOB
from tests.cluster.processes import wait_until
from tests.cluster.site import RULES

if TYPE_CHECKING:
    from tests.cluster.site import Site

ALLOWED = f"limits: {{keep: 1h}}\n{RULES}"
KEEP = "--comment=warmstart: keep"
WRITE = '#!/bin/sh\necho "$SLURM_RESTART_COUNT" >"$TMPDIR/mine"\ntouch "$WARMSTART_CACHE/code"\necho "$TMPDIR"\n'
LONG_AGO = (1, 1)


def maintain(site: Site) -> dict[str, Any]:
    """Run maintenance of n1 as the timer does. Return the events of what it removed."""
    known = len(site.audit("--event", "orphan.removed"))
    argv = [f"{site.cluster.prefix}/bin/warmstart", "maintain", "--node", "n1"]
    conf = {"SLURM_CONF": str(site.cluster.base / "etc" / "slurm.conf")}
    done = subprocess.run(argv, env=conf, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {event["path"]: event["kind"] for event in site.audit("--event", "orphan.removed")[known:]}


def kept(site: Site, output: str) -> Path:
    """Return the run's directory after checking that only its user can enter it, and that it has no cache."""
    tmp = Path([line for line in output.splitlines() if line.endswith("/tmp")][-1])
    assert sorted(os.listdir(tmp.parent)) == [".kept", "tmp"]
    assert (tmp.stat().st_uid, tmp.stat().st_mode & 0o777) == (site.cluster.account(ALICE).uid, 0o700)
    read = [site.cluster.run(["cat", str(tmp / "mine")], user) for user in (ALICE, BOB)]
    assert [done.returncode for done in read] == [0, 1]
    return tmp.parent


def test_a_job_keeps_its_files_for_a_time(site: Site) -> None:
    """`warmstart maintain` keeps them until the time is over, or the policy no longer allows it."""
    site.write_policy(ALLOWED)
    runs = []
    for job_id in [site.cluster.submit(WRITE, ALICE, "--nodelist=n1", KEEP) for _ in range(2)]:
        ended = site.finish(job_id)
        runs.append(kept(site, ended.output))
        (released,) = [event for event in site.events(ended.job_id, "step.finished") if event["step"] == "release"]
        assert released["kept"] == str(runs[-1])
        assert not (site.var / "n1" / "state" / str(ended.job_id)).exists()
    assert maintain(site) == {}
    os.utime(runs[0] / ".kept", LONG_AGO)
    assert maintain(site) == {str(runs[0]): "kept"}
    assert (runs[0].exists(), runs[1].exists()) == (False, True)
    site.write_policy()
    assert maintain(site) == {str(runs[1]): "kept"}
    assert site.leftovers() == []


def test_each_run_of_a_requeued_job_keeps_its_own(site: Site) -> None:
    """A second run has a directory of its own, with nothing of the first."""
    site.write_policy(ALLOWED)
    script = f"{WRITE}exec sleep 600\n"
    job_id = site.cluster.submit(script, ALICE, "--nodelist=n1", "--requeue", "--open-mode=append", KEEP)
    wait_until("the first run", lambda: site.cluster.job(job_id).output.count("\n") == 1, 60)
    site.cluster.requeue(job_id)
    site.cluster.wait_for(job_id, {"PENDING"})
    site.cluster.wait_idle()
    first = kept(site, site.cluster.job(job_id).output)
    # Not within the second of the requeue: slurmd refuses credentials as old as the revocation.
    site.cluster.admin("scontrol", "update", f"jobid={job_id}", "starttime=now+2")
    wait_until("the second run", lambda: site.cluster.job(job_id).output.count("/tmp\n") == 2, 60)
    os.utime(first / ".kept", LONG_AGO)
    assert maintain(site) == {str(first): "kept"}  # the job runs, and this run of it is over
    site.cluster.cancel(job_id)
    site.finish(job_id)
    second = kept(site, site.cluster.job(job_id).output)
    assert (second / "tmp" / "mine").read_text() == "1\n"
    os.utime(second / ".kept", LONG_AGO)
    assert maintain(site) == {str(second): "kept"}


def test_the_oldest_go_first_where_space_is_short(site: Site) -> None:
    """Early, and no more than necessary, because the next jobs need the disk."""
    small = site.cluster.base / "small"
    small.mkdir()
    site.write_policy(ALLOWED, workspace=str(small))
    fill = f"{WRITE}head -c 400k /dev/zero >$TMPDIR/filled\n"
    with mounts.tmpfs(small / "n1", size="1m"):
        jobs = [site.cluster.submit(fill, ALICE, "--nodelist=n1", KEEP) for _ in range(2)]
        first, second = (kept(site, site.finish(job_id).output) for job_id in jobs)
        assert maintain(site) == {}
        (second / "tmp" / "more").write_bytes(bytes(150 << 10))
        assert maintain(site) == {str(first): "kept"}
        assert second.exists()
    (small / "n1").rmdir()


@pytest.mark.parametrize("rules", [RULES, "rules: [{name: all}]\n"])
def test_where_no_job_may_the_user_is_told(site: Site, rules: str) -> None:
    """The job runs with a temporary workspace, whether or not the rules give it anything."""
    site.write_policy(rules)
    ended = site.finish(site.cluster.submit(WRITE, ALICE, "--nodelist=n1", KEEP))
    assert ended.state == "COMPLETED"
    assert "warmstart: keep: not offered on this cluster" in ended.output
    assert not Path(ended.output.splitlines()[-1]).exists()

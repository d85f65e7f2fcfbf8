"""Hooks that run twice, out of order, or not at all; `site` checks that nothing remains (architecture, rule 9)."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.processes import wait_until
from tests.lib.site import RULES, Site

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lib.registry import Registry

SLEEP = '#!/bin/sh\necho "$WARMSTART_CACHE"\nexec sleep 600\n'


def hooks_of(site: Site, job_id: int) -> list[tuple[str, str]]:
    """Return the finished hooks of a job, with their outcomes."""
    return [(event["hook"], event["outcome"]) for event in site.events(job_id, "hook.finished")]


def quiet(done: subprocess.CompletedProcess[str]) -> bool:
    """Return whether a hook run by hand ended with 0 and no output."""
    return (done.returncode, done.stdout, done.stderr) == (0, "", "")


def wishing(image: str) -> str:
    """Return sbatch's option that requests an image."""
    return f"--comment=warmstart: image={image}"


def is_importing(site: Site, node: str) -> bool:
    """Return whether there is the scratch directory of an import."""
    return any((site.workspace / node).glob("import.*"))


@pytest.mark.threat(14)
@pytest.mark.threat(19)
def test_an_epilog_without_a_prolog(site: Site) -> None:
    """A job that started while warmstart was off, and so got nothing, ends while it is on."""
    off = site.etc / "off"
    off.touch()
    try:
        job_id = site.cluster.submit(SLEEP, ALICE, "--nodelist=n1")
        wait_until("the job's script", lambda: site.cluster.job(job_id).output == "\n", 60)
        assert (site.leftovers(), site.audit("--job", str(job_id))) == ([], [])
    finally:
        off.unlink()
    site.cluster.cancel(job_id)
    site.finish(job_id)
    assert hooks_of(site, job_id) == [("epilog", "ok")]


def test_a_job_that_never_has_an_epilog(site: Site) -> None:
    """`srun --no-allocate` runs a prolog and no epilog: nothing is made for its job, and nothing stays."""
    user = pwd.getpwnam("slurm")
    site.write_policy(f"limits: {{min_uid: {min(user.pw_uid, 1000)}}}\n" + RULES)
    known = {line["job_id"] for line in site.results() if "job_id" in line}
    show = ["/bin/sh", "-c", "echo ${WARMSTART_CACHE-none}"]
    done = subprocess.run(
        ["/usr/bin/srun", "--no-allocate", "--nodelist=n1", "--ntasks=1", *show],
        user=user.pw_uid, group=user.pw_gid, extra_groups=[], env=site.cluster.environment, cwd="/",
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr
    ended = [line for line in site.results() if line.get("job_id") not in {*known, None}]
    assert [(line["job_id"] >= 0xFFFF0000, "no epilog" in line["excluded"]) for line in ended] == [(True, True)]
    assert site.leftovers() == []


def test_an_epilog_that_runs_twice_at_once(site: Site) -> None:
    """One of two simultaneous epilogs harvests and releases; both end well."""
    variables = site.variables(910003)
    assert quiet(site.run_hook("prolog", variables))
    both = [site.start_hook("epilog", variables) for _ in range(2)]
    answers = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers == [("", "")] * 2
    assert len({line["run_id"] for line in site.results(910003, "epilog") if "caches" in line}) == 1


@pytest.mark.threat(14)
def test_a_requeued_job_starts_anew(site: Site) -> None:
    """Prolog and epilog run for each of two runs; the second has a workspace of its own."""
    job_id = site.cluster.submit(SLEEP, ALICE, "--nodelist=n1", "--requeue", "--open-mode=append")
    wait_until("the first run", lambda: site.cluster.job(job_id).output.count("\n") == 1, 60)
    site.cluster.requeue(job_id)
    site.cluster.wait_for(job_id, {"PENDING"})
    # Slurm holds a requeued job back for two minutes, until its credential has expired. An admin may shorten
    # that; but slurmd tells the new credential from the revoked one by the second.
    requeued = time.time()
    wait_until("another second", lambda: time.time() > requeued + 2, 10)
    site.cluster.admin("scontrol", "update", f"jobid={job_id}", "starttime=now")
    wait_until("the second run", lambda: site.cluster.job(job_id).output.count("/cache\n") == 2, 60)
    site.cluster.cancel(job_id)
    ended = site.finish(job_id)
    assert ended.restarts == 1
    caches = [line for line in ended.output.splitlines() if line.endswith("/cache")]
    assert len(set(caches)) == 2
    assert hooks_of(site, job_id) == [("prolog", "ok"), ("epilog", "ok")] * 2


def test_a_slurmd_that_is_killed_during_a_prolog(
    site: Site, registry: Registry, fresh_image: Callable[[], str]
) -> None:
    """Its prolog and its import continue as orphans; slurmd returns, the job is cancelled, its epilog cleans up."""
    image = fresh_image()
    with registry.silent():
        job_id = site.cluster.submit(SLEEP, ALICE, "--nodelist=n4", wishing(image))
        wait_until("an import", lambda: is_importing(site, "n4"), 60)
        site.cluster.kill_slurmd("n4")
        site.cluster.start_slurmd("n4")
    wait_until("the orphan's end", lambda: ("prolog", "ok") in hooks_of(site, job_id), 60)
    site.cluster.cancel(job_id)
    site.finish(job_id)
    assert ("epilog", "ok") in hooks_of(site, job_id)
    assert len(site.events(job_id, "image.imported")) == 1
    after = site.cluster.submit("#!/bin/sh\ntrue\n", BOB, "--nodelist=n4")
    assert site.cluster.wait(after).state == "COMPLETED"


def hooks_at_work(hook: str, job_id: int) -> list[int]:
    """Return the processes of a hook that runs for a job; a worker of its has the same words."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words, variables = ((path / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
            if f"entry.{hook}".encode() in words and f"SLURM_JOB_ID={job_id}".encode() in variables:
                found.append(int(path.name))
    return found


@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_a_killed_hook_drains_with_slurms_reason(
    site: Site, registry: Registry, fresh_image: Callable[[], str], hook: str
) -> None:
    """The dead give no reason: audit and doctor do. The node is well and needs only to be resumed."""

    def kill() -> None:
        wait_until(f"the {hook}", lambda: any(hooks_at_work(hook, job_id)), 60)
        for pid in hooks_at_work(hook, job_id):
            os.kill(pid, signal.SIGKILL)
        wait_until("the drain", lambda: site.cluster.drained() == ["n4"], 60)

    if hook == "prolog":
        image = fresh_image()
        with registry.silent():
            job_id = site.cluster.submit(SLEEP, ALICE, "--nodelist=n4", wishing(image))
            wait_until("an import", lambda: is_importing(site, "n4"), 60)
            kill()
            assert len(site.imports()) == 1
        site.cluster.cancel(job_id)
    else:
        job_id = site.cluster.submit(SLEEP, ALICE, "--nodelist=n4")
        wait_until("the job", lambda: bool(site.cluster.job(job_id).output), 60)
        state = os.open(site.runtime("n4") / "state" / str(job_id), os.O_RDONLY)
        try:
            fcntl.flock(state, fcntl.LOCK_EX)
            site.cluster.cancel(job_id)
            kill()
        finally:
            os.close(state)
    assert site.cluster.node_states()["n4"].reason == f"{hook.capitalize()} error"
    assert site.results(job_id, hook) == []
    site.cluster.resume("n4")
    site.wait_imports()
    if hook == "prolog":
        wait_until("the epilog", lambda: site.results(job_id, "epilog") != [], 60)
    else:  # or maintenance
        variables = site.variables(job_id, node="n4", SLURM_CLUSTER_NAME="warmstart")
        assert quiet(site.run_hook("epilog", variables))
    findings = json.loads(site.command("doctor", "--json", node="n4").stdout)["findings"]
    (told,) = [finding for finding in findings if finding["check"] == "node.killed-hooks"]
    assert told["status"] == "advice"
    assert f"the {hook} of job {job_id} on n4" in told["found"]

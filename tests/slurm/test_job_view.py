"""What others can read of a job, and jobs of warmstart's own files, on real Slurm (docs/threats.md, row 17).

That no node is drained and that nothing is left of the jobs is checked after every test by `site` itself.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.processes import wait_until
from tests.lib.site import Site

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def running(site: Site, user: str, body: str = "") -> Iterator[tuple[int, Path]]:
    """Run a job on n1 that executes `body` and waits. Yield its id and workspace; end it afterwards."""
    go = site.cluster.account(user).home / f"go-{time.time_ns()}"
    script = f'#!/bin/sh\n{body}\necho "at $WARMSTART_CACHE"\nwhile [ ! -e {go} ]; do sleep 0.1; done\n'
    job_id = site.cluster.submit(script, user, "--nodelist=n1")
    try:
        wait_until("the job", lambda: "at /" in site.cluster.job(job_id).output, 60)
        cache = site.cluster.job(job_id).output.rpartition("at ")[2].strip()
        yield job_id, site.on_host("n1", cache).parent
    finally:
        go.touch()
        site.finish(job_id)


@pytest.mark.threat(17)
def test_a_job_that_names_another_users_job(site: Site) -> None:
    """The task prolog reads the view named in the environment, but only if its owner is the user."""
    program = str(site.cluster.prefix / "libexec/warmstart/task-prolog")
    with running(site, BOB) as (job_id, _):
        lie = {"SLURM_JOB_ID": str(job_id), "SLURMD_NODENAME": "n1"}
        own = site.cluster.run([program], BOB, env=lie, node="n1")
        assert "export WARMSTART_CACHE=" in own.stdout
        foreign = site.cluster.run([program], ALICE, env=lie, node="n1")
        assert (foreign.returncode, foreign.stdout, foreign.stderr) == (0, "", "")
        view = site.view("n1", job_id)
        for path in (view, view / "environment", view / "events"):
            assert site.cluster.run(["cat", str(path)], ALICE).returncode != 0
        assert site.cluster.run(["sh", "-c", f"echo x >{view}/environment"], BOB).returncode != 0
        explain = [str(site.cluster.prefix / "bin/warmstart"), "explain", str(job_id)]
        told = site.cluster.run(explain, BOB, node="n1")
        assert (told.returncode, f"job {job_id} of {BOB}" in told.stdout, "prolog on n1" in told.stdout) == (
            0,
            True,
            True,
        )
        told = site.cluster.run(explain, ALICE, node="n1")
        assert (told.returncode, told.stdout) == (1, "")
    others_learn_nothing_after_the_end(site, job_id)


@pytest.mark.report
@pytest.mark.threat(17)
def test_nobody_else_reads_what_a_job_is_shown(site: Site) -> None:
    """The list names paths of the job's models and trees. Its user reads it in containers, and cannot change it."""
    with running(site, BOB) as (_, run):
        own = site.cluster.run(["cat", str(run / "shown")], BOB)
        assert (own.returncode, own.stdout.split("\t")[2]) == (0, "cache")
        as_root = ["unshare", "--user", "--map-root-user", "cat", str(run / "shown")]  # as enroot's hooks
        assert site.cluster.run(as_root, BOB).stdout == own.stdout
        for command in ("echo x >>{0}", "rm -f {0}", "chmod 777 {0}", "mv {0} {0}.old"):
            assert site.cluster.run(["sh", "-c", command.format(run / "shown")], BOB).returncode != 0, command
        foreign = site.cluster.run(["cat", str(run / "shown")], ALICE)
        assert (foreign.returncode != 0, foreign.stdout) == (True, "")


def others_learn_nothing_after_the_end(site: Site, job_id: int) -> None:
    """Of a job of ws-bob: ws-bob is told of it on a host without its state, and can change nothing."""
    (report,) = site.store.glob(f"reports/*/{job_id:010}.*")
    for command in ("cat {0}", "ls {0.parent}", "ls {0.parent.parent}", "echo x >>{0}", "rm -f {0}", "ln {0} ~/x"):
        run = site.cluster.run(["sh", "-c", command.format(report)], ALICE)
        assert (run.returncode != 0, run.stdout) == (True, ""), command
    for command in (
        "echo x >>{0}",
        "rm -f {0}",
        "mv {0} {0}.x",
        "touch {0.parent}/0000000001.0a.n1",
        "rmdir {0.parent}",
    ):
        assert site.cluster.run(["sh", "-c", command.format(report)], BOB).returncode != 0, command
    for user, status in ((BOB, 0), (ALICE, 1)):
        told = site.elsewhere(user, "explain", str(job_id))
        assert (told.returncode, "epilog on n1" in told.stdout) == (status, user == BOB), told


@pytest.mark.threat(17)
def test_what_root_keeps_is_roots(site: Site) -> None:
    """Users cannot list records, stages, bundles or views, not even by name."""
    site.finish(site.compile_job("copy", ALICE, "n1"))
    site.finish(site.compile_job("copy", ALICE, "n1"))  # seeded: now there are local bundles, too
    with running(site, ALICE) as (job_id, _):
        parts = ("stage", "bundles")
        assert set(parts) <= set(os.listdir(site.var / "n1"))
        state = site.runtime("n1") / "state"
        for directory in (*(site.var / "n1" / part for part in parts), state, site.view("n1", "")):
            assert site.cluster.run(["ls", str(directory)], ALICE).returncode != 0
        record = state / str(job_id) / "run.json"
        assert record.is_file()
        assert site.cluster.run(["cat", str(record)], ALICE).returncode != 0

"""`harvest.only_successful` on real Slurm: each way in which a job can end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE
from tests.lib.numba_entries import numba_entries
from tests.lib.processes import wait_until
from tests.lib.site import RULES, Site

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lib.cluster import JobResult

ONLY = "harvest: {only_successful: true}\n" + RULES


@pytest.fixture
def choosy(site: Site) -> Site:
    """Yield the site with `harvest.only_successful` and an empty store."""
    site.write_policy(ONLY, store=str(site.new_store(site.cluster.base / "store-only")))
    return site


def script(number: int, end: str) -> str:
    """Return a job that makes one new entry and then ends in a given way."""
    ((_, files),) = numba_entries(number).items()
    writes = [
        f"import pathlib; p = pathlib.Path(os.environ['NUMBA_CACHE_DIR'], {name!r}); "
        f"p.parent.mkdir(exist_ok=True); p.write_bytes({data!r})"
        for name, data in files.items()
    ]
    code = "; ".join(["import os", *writes])
    return f"#!/bin/sh\npython3 - <<'EOF'\n{code}\nEOF\ntouch made\n{end}\n"


def run(site: Site, number: int, end: str, act: Callable[[int], object] | None = None, *arguments: str) -> JobResult:
    """Run such a job, and act on it once it has made its entry."""
    made = site.cluster.account(ALICE).home / "made"
    made.unlink(missing_ok=True)
    job_id = site.cluster.submit(script(number, end), ALICE, "--nodelist=n1", *arguments)
    if act:
        wait_until("the entry", made.exists, 60)
        act(job_id)
    return site.finish(job_id, 120)


def left_out(site: Site, job_id: int) -> list[str]:
    """Return why caches of a job were not harvested."""
    return sorted({cache["left_out"] for cache in site.caches(job_id) if "left_out" in cache})


def test_only_what_ended_well_is_harvested(choosy: Site) -> None:
    """Only status 0. Another status, a signal or a cancellation does not count, though the epilog gets 0."""
    cluster = choosy.cluster
    harvested = run(choosy, 1, "srun -n1 false; exit 0")
    failed = {
        "FAILED": run(choosy, 2, "exit 3"),
        "KILLED": run(choosy, 3, "kill -9 $$"),
        "CANCELLED": run(choosy, 4, "exec sleep 600", cluster.cancel),
    }
    assert [failed[name].state for name in failed] == ["FAILED", "FAILED", "CANCELLED"]
    reasons = {}
    for name, ended_as in failed.items():
        (reason,) = left_out(choosy, ended_as.job_id)
        reasons[name] = reason.replace("RaisedSignal:9(Killed)", "JobLaunchFailure")  # the former since 24.11
        assert choosy.harvested(ended_as.job_id) == []
    assert reasons == {
        "FAILED": "it ended with exit code 3:0, reason NonZeroExitCode",
        "KILLED": "it ended with exit code 0:9, reason JobLaunchFailure",
        "CANCELLED": "it ended with exit code 0:15, reason None",
    }
    assert left_out(choosy, harvested.job_id) == []
    listed = json.loads(choosy.command("cache", "list", "--json", "--profile", "numba").stdout)
    assert [bundle["entries"] for bundle in listed] == [1]


def test_a_requeued_run_did_not_end_well(choosy: Site) -> None:
    """Slurm reports no status and no end for it."""

    def requeue(job_id: int) -> None:
        choosy.cluster.requeue(job_id)
        choosy.cluster.wait_idle()
        choosy.cluster.cancel(job_id)

    ended_as = run(choosy, 5, "exec sleep 600", requeue, "--requeue")
    assert left_out(choosy, ended_as.job_id) == ["it was requeued"]

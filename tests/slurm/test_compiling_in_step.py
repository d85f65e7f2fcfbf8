"""A distributed job whose ranks compile in step, with real PyTorch: it must run with us wherever it runs without us."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE
from tests.lib.requirements import need_module

if TYPE_CHECKING:
    from tests.lib.cluster import JobResult
    from tests.lib.site import Site

pytestmark = pytest.mark.sweep

RULES = "rules: [{name: all, profiles: [inductor]}]\n"
LONG = 600.0  # seconds: longer than any compiling here


def run(site: Site, patience: float, *options: str) -> tuple[JobResult, dict[str, float]]:
    """Run a rank on n1 and one on n2; return the job, and how many seconds each compiled."""
    python = f'{site.cluster.python} {site.jobs}/gloo_job.py "$d/met" {patience}'
    script = (
        f"#!/bin/sh\nd=$(mktemp -d -p {site.cluster.base}/shared)\n"
        f"srun --ntasks-per-node=1 --kill-on-bad-exit {python}\n"
    )
    job = site.finish(site.cluster.submit(script, ALICE, "--nodelist=n1,n2", *options))
    lines = [json.loads(line) for line in job.output.splitlines() if line.startswith("{")]
    return job, {line["node"]: line["seconds"] for line in lines}


def test_a_job_of_which_one_node_cannot_be_warm_runs(site: Site) -> None:
    """All of its nodes are cold: a warm rank would give up waiting for the cold one."""
    need_module("torch")
    shared = site.cluster.base / "shared"
    shared.mkdir(mode=0o1777)
    shared.chmod(0o1777)
    site.write_policy(RULES)
    job, cold = run(site, LONG)
    assert job.state == "COMPLETED", job.output
    job, warm = run(site, LONG)
    assert job.state == "COMPLETED", job.output
    slowest, fastest = max(warm.values()), min(cold.values())
    assert slowest < fastest / 2
    patience = slowest + (fastest - slowest) / 4
    with site.full_node_cache("n2"):
        job, together = run(site, patience)
    assert job.state == "COMPLETED", (job.output, together)
    assert min(together.values()) > slowest

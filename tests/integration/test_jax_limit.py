"""JAX with a limit to its cache: what is new is kept beside what was seeded, and what JAX removes stays for others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.accounts import ALICE, BOB
from tests.support.hand_jobs import HandJob, a_job
from tests.support.requirements import need_module

if TYPE_CHECKING:
    from tests.cluster.site import Site

pytestmark = pytest.mark.tool

JOB = Path(__file__).resolve().parents[1] / "jobs/jax_job.py"
POLICY = f"""\
rules:
  - {{name: readers, profiles: [jax], scope: site}}
  - {{name: publishers, match: {{partition: ci}}, scope: site, publish: {{users: [{ALICE}, {BOB}]}}}}
"""


def ran(job: HandJob, *functions: int, limit: int = -1) -> dict[str, Any]:
    """Compile functions in a job. Return what JAX counted, and what it said."""
    site = job.site
    script = (
        f"cd /; JAX_COMPILATION_CACHE_MAX_SIZE={limit} {site.cluster.python} {JOB} {' '.join(map(str, functions))} 2>&1"
    )
    *said, report = job.run(script).splitlines()
    return {**json.loads(report), "said": "\n".join(said)}


def harvested(job: HandJob) -> dict[str, Any]:
    """Return the event of the job's harvest."""
    (event,) = job.site.events(job.job_id, "cache.harvested")
    return event


def test_a_limit_in_a_seeded_cache(site: Site) -> None:
    """Without the times of last use JAX stores nothing more; with them it removes what is seeded, for itself alone."""
    need_module("jax")
    site.write_policy(POLICY, store=str(site.new_store(site.cluster.base / "store-jax-limit")))
    with a_job(site, 941001, user=ALICE, partition="ci") as first:
        assert ran(first, 1, 2, 3)["cache_hits"] == 0
    with a_job(site, 941002, "n2", user=BOB, partition="ci") as second:
        roomy = ran(second, 1, 4, limit=1 << 30)
        assert (roomy["cache_hits"] > 0, roomy["said"]) == (True, "")
        assert ran(second, 4, limit=1 << 30)["cache_misses"] == 0
    assert harvested(second)["entries"] == roomy["cache_misses"]
    with a_job(site, 941003, user=BOB, partition="ci") as third:
        sizes = third.run('cd "$JAX_COMPILATION_CACHE_DIR"; wc -c *-cache').split()
        ran(third, 5, limit=max(map(int, sizes[:-2:2])) + 100)
        assert third.run('ls "$JAX_COMPILATION_CACHE_DIR"').count("-cache") < len(sizes) // 2
    assert (harvested(third)["retired"], harvested(third)["changed"]) == (0, 0)
    with a_job(site, 941004, "n2", user=ALICE) as fourth:
        assert ran(fourth, 1, 2, 3, 4)["cache_misses"] == 0
    assert json.loads(site.command("cache", "compact", "--json").stdout)["compacted"] == 1
    with a_job(site, 941005, user=BOB) as fifth:
        assert ran(fifth, 1, 4, 5, 6, limit=1 << 30)["said"] == ""

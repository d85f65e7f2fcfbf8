"""Numba on real Slurm: jobs that were killed or compiled at the same time harm no later job, also after compaction."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.processes import wait_until
from tests.lib.requirements import need_module
from tests.lib.site import Site, result

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = "kernel_and_wrapper two_types größe"
KERNEL = 2  # the number of the file that makes a kernel whole; its wrapper is the next two


@pytest.fixture
def fresh(installed: Site) -> Iterator[Site]:
    """Give the site with an empty store."""
    store = installed.cluster.base / "store-numba"
    if store.exists():
        shutil.rmtree(store)
    installed.new_store(store)
    installed.write_policy(store=str(store))
    yield installed
    installed.write_policy()


def submit(site: Site, node: str, before: str = "", **variables: str) -> int:
    """Submit a job from a directory that a person named; returns its id."""
    settings = "".join(f"export {name}={value}\n" for name, value in variables.items())
    script = (
        f"#!/bin/sh\nset -e\nexport PYTHONUTF8=1\n{settings}mkdir -p 'my project [Ünï]'; cd 'my project [Ünï]'\n"
        f"cp {site.jobs}/numba_kinds_job.py größen.py\n{before}exec {site.cluster.python} größen.py {KINDS}\n"
    )
    return site.cluster.submit(script, ALICE, f"--nodelist={node}", "--cpus-per-task=1")


def events(site: Site, job_id: int, event: str) -> list[dict[str, Any]]:
    """Return the events of a job that are about Numba."""
    return [found for found in site.events(job_id, event) if found["profile"] == "numba"]


def test_jobs_that_each_brought_a_part(fresh: Site) -> None:
    """One is killed between kernel and wrapper, another compiled all meanwhile; the next two, one after compaction."""
    need_module("numba")
    site = fresh
    go = site.cluster.base / "go"
    whole = submit(site, "n2", f"echo waiting\nwhile [ ! -e {go} ]; do sleep 0.1; done\n", WARMSTART_SHIFT="3")
    wait_until("the job", lambda: "waiting" in site.cluster.job(whole).output, 60)
    killed = submit(site, "n1", WARMSTART_KILL=str(KERNEL))
    assert site.cluster.wait(killed, 240).state == "FAILED"
    wait_until("its harvest", lambda: bool(events(site, killed, "cache.harvested")), 60)
    assert [event["entries"] for event in events(site, killed, "cache.harvested")] == [1]
    go.touch()
    ended = site.finish(whole, 300)
    go.unlink()
    assert ended.state == "COMPLETED", ended
    (brought,) = events(site, whole, "cache.harvested")
    assert (brought["entries"], brought["known"], brought["ignored"]) == (2, 4, {})
    expected = result(ended.output.partition("waiting\n")[2])["results"]
    for node, compact in (("n1", False), ("n3", True)):
        if compact:
            assert site.command("cache", "compact").returncode == 0
        ended = site.finish(job_id := submit(site, node))
        assert ended.state == "COMPLETED", ended
        report = result(ended.output)
        assert (report["results"], report["cache_misses"]) == (expected, 0)
        assert [event["entries"] for event in events(site, job_id, "cache.seeded")] == [3]


def test_ranks_that_compile_in_caches_of_their_own(fresh: Site) -> None:
    """Each of a step's four tasks finds on another node what its namesake compiled."""
    need_module("numba")
    site = fresh
    own = "NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:+$NUMBA_CACHE_DIR/rank_$SLURM_LOCALID}"
    rank = f"{own} exec {site.cluster.python} {site.jobs}/numba_job.py"
    script = f"#!/bin/sh\nsrun --quiet --ntasks=4 --overcommit sh -c '{rank}'\n"
    seen = {}
    for node in ("n1", "n2"):
        ended = site.finish(job_id := site.cluster.submit(script, ALICE, f"--nodelist={node}"), 300)
        assert ended.state == "COMPLETED", ended
        lines = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
        harvested = sum(event["entries"] for event in events(site, job_id, "cache.harvested"))
        seen[node] = [(line["cache_hits"], line["cache_misses"]) for line in lines], harvested
    assert seen == {"n1": ([(0, 2)] * 4, 8), "n2": ([(2, 0)] * 4, 0)}


def test_a_bundle_that_another_users_epilog_delivers(fresh: Site) -> None:
    """The store was away when the producer ended: audit, explain and report count the bundle as the producer's."""
    need_module("numba")
    site = fresh
    store = site.cluster.base / "store-numba"
    away = store.with_name("store-numba-away")
    store.rename(away)
    try:
        producer = submit(site, "n3")
        assert site.finish(producer, 300).state == "COMPLETED"
    finally:
        away.rename(store)
    assert len(events(site, producer, "bundle.spooled")) == 1
    courier = site.cluster.submit("#!/bin/sh\ntrue\n", BOB, "--nodelist=n3")
    site.finish(courier)
    (told,) = events(site, producer, "bundle.published")
    assert (told["user"], told["done_by"]["job_id"], told["done_by"]["user"]) == (ALICE, courier, BOB)
    assert told in site.audit("--user", ALICE, "--event", "bundle.published")  # the runbook's search
    assert told not in site.audit("--user", BOB)
    assert events(site, courier, "bundle.published") == []
    story = json.loads(site.command("explain", str(producer), "--json").stdout)
    (delivery,) = [hook for hook in story["hooks"] if hook["hook"] == f"epilog of job {courier}"]
    assert (delivery["outcome"], "new entries published" in delivery["parts"][0]["what"]) == ("ok", True)
    harvested = json.loads(site.command("report", "--json").stdout)["entries"]["harvested"]
    assert harvested >= told["entries"] > 0

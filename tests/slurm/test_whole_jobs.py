"""What the nodes of a job compile is published as a whole, on real Slurm."""

from __future__ import annotations

import os
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE
from tests.lib.installation import write_hook
from tests.lib.processes import wait_until
from tests.lib.shell_profiles import profiles
from tests.lib.whole_jobs import handed_in, published

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lib.site import Site

PROFILES = (f"alpha{number}" for number in count())  # a namespace for each test
NODES = ("n1", "n2", "n3", "n4")
# A pipeline of two stages: all nodes compile one graph, both nodes of a stage another, and each one its own.
STAGES = """#!/bin/sh
srun --ntasks-per-node=1 sh -c '
  cd "$WARMSTART_CACHE"/alpha*
  echo "$SLURMD_NODENAME: $(ls | tr "\\n" " ")"
  for graph in all stage-$((SLURM_NODEID / 2)) rank-$SLURM_NODEID; do
    [ -e $graph.bin ] || head -c 9000 /dev/urandom >$graph.bin
  done' | sort
"""
SHOW = """#!/bin/sh
srun --ntasks-per-node=1 sh -c 'cd "$WARMSTART_CACHE"/alpha* && echo "$SLURMD_NODENAME: $(ls | tr "\\n" " ")"' | sort
"""
ALL = "all.bin rank-0.bin rank-1.bin rank-2.bin rank-3.bin stage-0.bin stage-1.bin"


@pytest.fixture
def whole(site: Site) -> Site:
    """Return the site with a profile whose entries a shell can write."""
    name = next(PROFILES)
    site.write_policy(f"{profiles(**{name: '*.bin'})}    in_step: true\nrules: [{{name: all, profiles: [{name}]}}]\n")
    return site


def run(site: Site, script: str, *options: str) -> tuple[int, dict[str, str]]:
    """Run a job, by default on all four nodes; return its id and what each node found."""
    return ended(site, site.cluster.submit(script, ALICE, *(options or (f"--nodelist={','.join(NODES)}",))))


def ended(site: Site, job_id: int, *, idle: bool = True) -> tuple[int, dict[str, str]]:
    """Wait for such a job, and until nothing works for it any more if the cluster is to be `idle`."""
    job = site.finish(job_id) if idle else site.cluster.wait(job_id)
    assert job.state == "COMPLETED", job
    seen = dict(line.split(":") for line in job.output.splitlines() if line.startswith("n"))
    return job_id, {node: names.strip() for node, names in seen.items()}


def test_what_every_rank_compiles_is_warm_on_every_node_of_the_next_run(whole: Site) -> None:
    """One bundle has it all, under the job that made it, and nothing is left of the parts."""
    job, seen = run(whole, STAGES)
    assert seen == dict.fromkeys(NODES, "")
    (bundle,) = published(whole, job)
    assert (bundle["entries"], bundle["user"]) == (7, ALICE)
    (merged,) = whole.events(job, "harvest.merged")
    assert (merged["nodes"], merged["missing"]) == (4, [])
    assert os.listdir(whole.store / "parts") == []
    again, seen = run(whole, STAGES)
    assert seen == dict.fromkeys(NODES, ALL)
    assert published(whole, again) == whole.events(again, "harvest.merged") == []
    assert os.listdir(whole.store / "parts") == []


@contextmanager
def held_epilog(site: Site, node: str, until: Path) -> Iterator[None]:
    """Let a node's epilogs wait until a file is there."""
    installed = site.cluster.prefix / "libexec/warmstart/epilog"
    real = installed.rename(f"{installed}.installed")
    body = f'[ "$SLURMD_NODENAME" != {node} ] || while [ ! -e {until} ]; do sleep 0.05; done\nexec {real}'
    write_hook(site.cluster.prefix, "epilog", body)
    try:
        yield
    finally:
        until.touch()
        site.cluster.wait_idle()
        until.unlink()
        real.rename(installed)


@pytest.mark.parametrize("late", ["n1", "n2"])
def test_a_job_between_two_harvests_sees_none_of_them(whole: Site, late: str) -> None:
    """Whichever node is late, the head or the other; the one after both sees all of them."""
    go = whole.cluster.base / f"go-{late}"  # other tests have files of other names
    with held_epilog(whole, late, go):
        job = whole.cluster.submit(STAGES, ALICE, "--nodelist=n1,n2")
        try:
            wait_until("one node's harvest", lambda: len(handed_in(whole, job)) == 1, 60)
        except TimeoutError as late_too:
            raise AssertionError(whole.audit("--job", str(job))) from late_too
        between = whole.cluster.submit(SHOW, ALICE, "--nodelist=n3,n4")
        assert ended(whole, between, idle=False)[1] == {"n3": "", "n4": ""}
        assert published(whole, job) == []
        go.touch()
        ended(whole, job)
    assert len(published(whole, job)) == 1
    warm = "all.bin rank-0.bin rank-1.bin stage-0.bin"
    assert run(whole, SHOW, "--nodelist=n3,n4")[1] == {"n3": warm, "n4": warm}


def test_a_job_on_one_node_publishes_at_once(whole: Site) -> None:
    """It has nobody to wait for."""
    job, _ = run(whole, STAGES, "--nodelist=n2")
    assert len(published(whole, job)) == 1
    assert handed_in(whole, job) == whole.events(job, "harvest.merged") == []

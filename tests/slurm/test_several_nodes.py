"""A job on several nodes: warm on all of them or on none, and what they compile is published as a whole."""

from __future__ import annotations

import os
import re
import shutil
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from tests.lib import command_line
from tests.lib.accounts import ALICE
from tests.lib.held_hooks import held, wrapped
from tests.lib.processes import wait_until
from tests.lib.several_nodes import RULES, agreed, handed_in, left
from tests.lib.shell_profiles import profiles
from warmstart.paths import Installation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lib.site import Site

NAMES = (f"alpha{number}" for number in count())  # a namespace for each test
ALL_NODES = "--nodelist=n1,n2,n3,n4"
SHOW = """#!/bin/sh
srun --ntasks-per-node=1 sh -c 'cd "$WARMSTART_CACHE"/alpha* && echo "$SLURMD_NODENAME: $(ls | tr "\\n" " ")"'
"""
MAKE = '#!/bin/sh\nhead -c 9000 /dev/urandom >"$ALPHA_CACHE/$1.bin"\n'
# A pipeline of two stages: all nodes compile one graph, both nodes of a stage another, and each one its own.
STAGES = """#!/bin/sh
srun --ntasks-per-node=1 sh -c '
  cd "$WARMSTART_CACHE"/alpha*
  echo "$SLURMD_NODENAME: $(ls | tr "\\n" " ")"
  for graph in all stage-$((SLURM_NODEID / 2)) rank-$SLURM_NODEID; do
    [ -e $graph.bin ] || head -c 9000 /dev/urandom >$graph.bin
  done'
"""
STAGED = "all.bin rank-0.bin rank-1.bin rank-2.bin rank-3.bin stage-0.bin stage-1.bin"


def run(site: Site, script: str = SHOW, nodes: str = "--nodelist=n1,n2") -> tuple[int, dict[str, str]]:
    """Run a job; return its id and what each node found."""
    return ended(site, site.cluster.submit(script, ALICE, nodes))


def ended(site: Site, job_id: int, *, idle: bool = True) -> tuple[int, dict[str, str]]:
    """Wait for such a job, and until nothing works for it any more if the cluster is to be `idle`."""
    job = site.finish(job_id) if idle else site.cluster.wait(job_id)
    assert job.state == "COMPLETED", job
    seen = dict(line.split(":") for line in job.output.splitlines() if line.startswith("n"))
    return job_id, {node: names.strip() for node, names in seen.items()}


@pytest.fixture
def warm(site: Site) -> Site:
    """Return the site with a store that has one entry for alice."""
    site.write_policy(RULES)
    make(site, "first")
    return site


def make(site: Site, name: str) -> None:
    """Have a job on a third node publish an entry."""
    job = site.cluster.submit(MAKE.replace("$1", name), ALICE, "--nodelist=n3")
    assert site.cluster.wait(job).state == "COMPLETED"


def test_all_nodes_are_warm_where_all_can_be_and_else_none(warm: Site) -> None:
    """One node's disk is full: the job is cold as a whole, told why, and the next one is warm."""
    job, seen = run(warm)
    assert seen == {"n1": "first.bin", "n2": "first.bin"}
    assert agreed(warm, job) == {"n1": {}, "n2": {}}
    assert not left(warm, job)
    with warm.full_node_cache("n2"):
        job, seen = run(warm)
    assert seen == {"n1": "", "n2": ""}
    assert {node: cold["alpha"]["nodes"] for node, cold in agreed(warm, job).items()} == {"n1": ["n2"], "n2": ["n2"]}
    assert run(warm)[1] == {"n1": "first.bin", "n2": "first.bin"}


def test_what_is_published_between_two_prologs_is_shown_by_neither(warm: Site) -> None:
    """The second node takes what the head node proposed, not what it would find."""
    warm.write_policy(f"seed: {{fetch_budget: 60s}}\n{RULES}")  # which the head node waits for votes
    with held(warm, "prolog", "n2") as go:
        job = warm.cluster.submit(SHOW, ALICE, "--nodelist=n1,n2")
        wait_until("the proposal", lambda: any((warm.store / "runs").glob("*/caches.*.proposal")), 30)
        make(warm, "second")
        go()
        _, seen = ended(warm, job)
    assert seen == {"n1": "first.bin", "n2": "first.bin"}
    assert run(warm)[1] == {"n1": "first.bin second.bin", "n2": "first.bin second.bin"}


@pytest.mark.real_time
def test_a_node_that_does_not_vote_in_time_makes_all_cold(warm: Site) -> None:
    """The head node does not wait for it for ever, and the late one takes the head node's word."""
    warm.write_policy(f"seed: {{fetch_budget: 2s}}\n{RULES}")
    with held(warm, "prolog", "n2") as go:
        job = warm.cluster.submit(SHOW, ALICE, "--nodelist=n1,n2")
        wait_until("the choice", lambda: any((warm.store / "runs").glob("*/caches.*.choice")), 60)
        go()
        _, seen = ended(warm, job)
    assert seen == {"n1": "", "n2": ""}
    told = agreed(warm, job)["n2"]["alpha"]
    assert (told["cold"], told["nodes"]) == ("no-vote", ["n2"])


def test_nodes_that_differ_are_cold_together(warm: Site, tmp_path: Path) -> None:
    """The second node's CPU lacks a flag, so nothing of the first one's fits it; `explain` says what and where."""
    real = Path("/proc/cpuinfo").read_text()
    other = tmp_path / "cpuinfo"
    other.write_text(re.sub(r"(?m)^(flags|Features)(\s*:) \S+", r"\1\2", real))
    change = f"mount --make-private /proc && mount --bind {other} /proc/cpuinfo"
    unshared = f'exec unshare --mount --propagation unchanged sh -c \'{change} && exec "$0"\' "$real"'
    warm.write_policy(RULES.replace("    in_step", "    facts: [cpu]\n    in_step"))
    make(warm, "native")
    with wrapped(warm, "prolog", f'[ "$SLURMD_NODENAME" != n2 ] || {unshared}'):
        job, seen = run(warm)
    assert seen == {"n1": "", "n2": ""}
    why = {"alpha": {"warm": False, "cold": "nodes-differ: cpu", "nodes": ["n2"]}}
    assert agreed(warm, job) == {"n1": why, "n2": why}
    told = " ".join(warm.command("explain", str(job)).stdout.split())
    assert "the job's nodes differ in what its entries depend on (cpu)" in told
    assert "because of n2" in told
    assert run(warm)[1] == {"n1": "native.bin", "n2": "native.bin"}


@pytest.fixture
def whole(site: Site) -> Site:
    """Return the site with a profile whose entries a shell can write, in a namespace of this test's own."""
    name = next(NAMES)
    site.write_policy(f"{profiles(**{name: '*.bin'})}    in_step: true\nrules: [{{name: all, profiles: [{name}]}}]\n")
    return site


def test_what_every_rank_compiles_is_warm_on_every_node_of_the_next_run(whole: Site) -> None:
    """One generation has all of it, and nothing is left of what the nodes handed in."""
    job, seen = run(whole, STAGES, ALL_NODES)
    assert set(seen.values()) == {""}
    (merged,) = whole.events(job, "harvest.merged")
    assert (merged["generation"], merged["bundles"], "problem" in merged) == (1, 4, False)
    again, seen = run(whole, STAGES, ALL_NODES)
    assert seen == dict.fromkeys(("n1", "n2", "n3", "n4"), STAGED)
    assert whole.events(again, "harvest.merged") == []
    assert os.listdir(whole.store / "ending") == []


@pytest.mark.parametrize("late", ["n1", "n2"])
def test_a_job_between_two_harvests_sees_none_of_them(whole: Site, late: str) -> None:
    """Whichever node is late, the head or the other; the one after both sees all of them."""
    with held(whole, "epilog", late) as go:
        job = whole.cluster.submit(STAGES, ALICE, "--nodelist=n1,n2")
        wait_until("one node's harvest", lambda: len(handed_in(whole, job)) == 1, 60)
        between = whole.cluster.submit(SHOW, ALICE, "--nodelist=n3,n4")
        assert ended(whole, between, idle=False)[1] == {"n3": "", "n4": ""}
        assert whole.events(job, "harvest.merged") == []
        go()
        ended(whole, job)
    assert len(whole.events(job, "harvest.merged")) == 1
    warm = "all.bin rank-0.bin rank-1.bin stage-0.bin"
    assert run(whole, SHOW, "--nodelist=n3,n4")[1] == {"n3": warm, "n4": warm}


def test_a_node_that_ends_too_late_delays_the_others_by_an_hour(whole: Site) -> None:
    """Until then later jobs see nothing of the run; then maintenance unites what has come, and later the rest."""
    with held(whole, "epilog", "n3"):
        job = whole.cluster.submit(STAGES, ALICE, "--nodelist=n1,n2,n3")
        wait_until("two nodes' harvest", lambda: len(handed_in(whole, job)) == 2, 60)
        assert ended(whole, whole.cluster.submit(SHOW, ALICE, "--nodelist=n4"), idle=False)[1] == {"n4": ""}
        maintain_in_an_hour(whole)
        united = "all.bin rank-0.bin rank-1.bin stage-0.bin"
        assert ended(whole, whole.cluster.submit(SHOW, ALICE, "--nodelist=n4"), idle=False)[1] == {"n4": united}
    maintain_in_an_hour(whole)
    united = "all.bin rank-0.bin rank-1.bin rank-2.bin stage-0.bin stage-1.bin"
    assert run(whole, SHOW, "--nodelist=n4")[1] == {"n4": united}


def maintain_in_an_hour(site: Site) -> None:
    """Run the store's maintenance as it will be when no node of a run is waited for any more."""
    with mock.patch("time.time", return_value=time.time() + 3700):
        assert command_line.run(Installation(str(site.cluster.prefix)), "maintain", "--store").exit_code == 0


# Each task makes a file where its variables say, as tools do; without warmstart that is /tmp and nowhere.
TASK = """\
for name in NUMBA_CACHE_DIR WARMSTART_CACHE TMPDIR; do
    eval "place=\\$$name"
    if [ -z "$place" ]; then state=unset; elif mkdir -p "$place/made.$$"; then state=usable; else state=broken; fi
    echo "$SLURMD_NODENAME $name $state"
done
rmdir "${TMPDIR:-/tmp}/made.$$" 2>/dev/null
true
"""


@pytest.fixture(params=["task prolog", "plugin"])
def reader(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Yield the site, with the plugin or without."""
    site: Site = request.getfixturevalue("plugged" if request.param == "plugin" else "installed")
    site.write_policy(constant="spank" if request.param == "plugin" else "none")
    yield site
    site.write_policy()


@pytest.mark.threat(59)
def test_a_node_without_a_view_inherits_nothing(reader: Site) -> None:
    """As where warmstart is off there, or its prolog crashed: the step on both nodes ends well."""
    go = reader.cluster.base / "go"
    go.unlink(missing_ok=True)
    task = reader.cluster.base / "task.sh"
    task.write_text(TASK)
    task.chmod(0o755)
    wait = f"while [ ! -e {go} ]; do sleep 0.2; done"
    script = f"#!/bin/sh\necho ready\n{wait}\nexec srun --ntasks-per-node=1 --nodes=2 /bin/sh {task}\n"
    job = reader.cluster.submit(script, ALICE, "--nodelist=n1,n2")
    output = reader.cluster.account(ALICE).home / f"slurm-{job}.out"
    wait_until("the job's script", lambda: output.exists() and "ready" in output.read_text(), 60)
    shutil.rmtree(reader.view("n2", job))
    go.touch()
    ended = reader.finish(job)
    told = {(node, name): state for node, name, state in (line.split() for line in ended.output.splitlines()[1:])}
    assert ended.state == "COMPLETED", ended.output
    assert {state for (node, _), state in told.items() if node == "n1"} == {"usable"}, ended.output
    there = {name: state for (node, name), state in told.items() if node == "n2"}  # slurmstepd sets a TMPDIR
    assert there == {"NUMBA_CACHE_DIR": "unset", "WARMSTART_CACHE": "unset", "TMPDIR": "usable"}, ended.output

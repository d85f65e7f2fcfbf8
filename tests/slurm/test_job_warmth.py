"""A job on several nodes is warm on all of them or on none, on real Slurm."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lib.accounts import ALICE
from tests.lib.installation import write_hook
from tests.lib.processes import wait_until
from tests.lib.shell_profiles import profiles
from tests.slurm.test_background_imports import prolog_flags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lib.site import Site

RULES = f"{profiles(alpha='*.bin')}    in_step: true\nrules: [{{name: all, profiles: [alpha]}}]\n"
SHOW = """#!/bin/sh
srun --ntasks-per-node=1 sh -c 'cd "$ALPHA_CACHE" && echo "$SLURMD_NODENAME: $(ls | tr "\\n" " ")"' | sort
"""
MAKE = '#!/bin/sh\nhead -c 9000 /dev/urandom >"$ALPHA_CACHE/$1.bin"\n'


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


def show(site: Site, *options: str) -> tuple[int, dict[str, str]]:
    """Run a job on n1 and n2; return its id and what each node showed it."""
    return ended(site, site.cluster.submit(SHOW, ALICE, *(options or ("--nodelist=n1,n2",))))


def ended(site: Site, job_id: int) -> tuple[int, dict[str, str]]:
    """Wait for such a job."""
    job = site.finish(job_id)
    assert job.state == "COMPLETED", job
    seen = dict(line.split(":") for line in job.output.splitlines() if line.startswith("n"))
    return job_id, {node: names.strip() for node, names in seen.items()}


def agreed(site: Site, job_id: int) -> dict[str, dict[str, Any]]:
    """Return what each node's audit says of the agreement: profiles that are cold."""
    return {event["node"]: event["cold"] for event in site.events(job_id, "cache.agreed")}


def left(site: Site, job_id: int) -> list[Path]:
    """Return what the nodes of a job have left of their meeting in the store."""
    return [*(site.store / "runs").glob(f"*.{job_id}.*")]


def test_all_nodes_are_warm_where_all_can_be(warm: Site) -> None:
    """And one job on one node leaves nothing for others in the store."""
    job, seen = show(warm)
    assert seen == {"n1": "first.bin", "n2": "first.bin"}
    assert agreed(warm, job) == {"n1": {}, "n2": {}}
    assert not left(warm, job)
    job, seen = show(warm, "--nodelist=n1")
    assert (seen, agreed(warm, job), left(warm, job)) == ({"n1": "first.bin"}, {}, [])


def test_a_node_that_cannot_be_warm_makes_all_cold(warm: Site) -> None:
    """Its disk is full; so the job is cold as a whole, told why, and the next one is warm."""
    with warm.full_node_cache("n2"):
        job, seen = show(warm)
    assert seen == {"n1": "", "n2": ""}
    assert {node: cold["alpha"]["nodes"] for node, cold in agreed(warm, job).items()} == {"n1": ["n2"], "n2": ["n2"]}
    assert show(warm)[1] == {"n1": "first.bin", "n2": "first.bin"}


@contextmanager
def held_prolog(site: Site, node: str, until: Path) -> Iterator[None]:
    """Let a node's prologs wait until a file is there."""
    with wrapped_prolog(site, f'[ "$SLURMD_NODENAME" != {node} ] || while [ ! -e {until} ]; do sleep 0.05; done'):
        try:
            yield
        finally:
            until.touch()
            site.cluster.wait_idle()
            until.unlink()


@contextmanager
def wrapped_prolog(site: Site, before: str) -> Iterator[None]:
    """Let all nodes' prologs run some commands of the shell first."""
    installed = site.cluster.prefix / "libexec/warmstart/prolog"
    real = installed.rename(f"{installed}.installed")
    write_hook(site.cluster.prefix, "prolog", f'real="{real}"\n{before}\nexec "$real"')
    try:
        yield
    finally:
        site.cluster.wait_idle()
        real.rename(installed)


def test_what_is_published_between_two_prologs_is_shown_by_neither(warm: Site) -> None:
    """The second node takes what the head node proposed, not what it would find."""
    go, proposal = warm.cluster.base / "go", warm.store / "runs"
    warm.write_policy(f"seed: {{fetch_budget: 60s}}\n{RULES}")  # which the head node waits for votes
    with held_prolog(warm, "n2", go):
        job = warm.cluster.submit(SHOW, ALICE, "--nodelist=n1,n2")
        wait_until("the proposal", lambda: any(proposal.glob("*/caches.proposal")), 30)
        make(warm, "second")
        go.touch()
        _, seen = ended(warm, job)
    assert seen == {"n1": "first.bin", "n2": "first.bin"}
    assert show(warm)[1] == {"n1": "first.bin second.bin", "n2": "first.bin second.bin"}


def test_a_node_that_does_not_vote_in_time_makes_all_cold(warm: Site) -> None:
    """The head node does not wait for it for ever, and the late one takes the head node's word."""
    go = warm.cluster.base / "go"
    with held_prolog(warm, "n2", go):
        job = warm.cluster.submit(SHOW, ALICE, "--nodelist=n1,n2")
        wait_until("the choice", lambda: any((warm.store / "runs").glob("*/caches.choice")), 60)
        go.touch()
        _, seen = ended(warm, job)
    assert seen == {"n1": "", "n2": ""}
    assert agreed(warm, job)["n2"]["alpha"] == {"reason": "no-vote", "nodes": ["n2"]}


def test_nodes_that_differ_are_cold_together(warm: Site, tmp_path: Path) -> None:
    """The second node's CPU lacks a flag, so nothing of the first one's fits it; `explain` says what and where."""
    real = Path("/proc/cpuinfo").read_text()
    other = tmp_path / "cpuinfo"
    other.write_text(re.sub(r"(?m)^(flags|Features)(\s*:) \S+", r"\1\2", real))
    change = f"mount --make-private /proc && mount --bind {other} /proc/cpuinfo"
    unshared = f'exec unshare --mount --propagation unchanged sh -c \'{change} && exec "$0"\' "$real"'
    warm.write_policy(RULES.replace("    in_step", "    facts: [cpu]\n    in_step"))
    make(warm, "native")
    with wrapped_prolog(warm, f'[ "$SLURMD_NODENAME" != n2 ] || {unshared}'):
        job, seen = show(warm)
    assert seen == {"n1": "", "n2": ""}
    why = {"alpha": {"reason": "nodes-differ: cpu", "nodes": ["n2"]}}
    assert agreed(warm, job) == {"n1": why, "n2": why}
    told = json.loads(warm.command("explain", str(job), "--json").stdout)["spread"]
    assert {"name": "alpha", "what": "cold: nodes-differ: cpu, because of n2", "nodes": ["n1", "n2"]} in told
    assert [one["nodes"] for one in told if one["name"] == "cpu"] == [["n1"], ["n2"]]
    assert show(warm)[1] == {"n1": "native.bin", "n2": "native.bin"}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("flags", "is_warm"),
    [("Alloc", True), ("Alloc,NoHold", True), ("Alloc,NoHold,DeferBatch", True), ("Serial", False)],
)
def test_what_other_prolog_flags_do(warm: Site, flags: str, is_warm: bool) -> None:
    """A node's tasks begin after its own prolog in any case; without Alloc the nodes wait for each other in vain."""
    with prolog_flags(warm, flags):
        job, seen = show(warm)
    assert set(seen) == {"n1", "n2"}
    assert {bool(names) for names in seen.values()} == {is_warm}
    assert {cold["alpha"]["reason"] for cold in agreed(warm, job).values() if cold} == (
        set() if is_warm else {"no-vote"}
    )

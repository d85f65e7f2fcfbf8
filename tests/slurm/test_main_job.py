"""The main job on real Slurm: one import for all, a warm start on another node, the job's environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.processes import wait_until
from tests.lib.registry import layers
from tests.lib.requirements import need_module
from tests.lib.site import Site, result

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lib.cluster import JobResult
    from tests.lib.registry import Registry

SITE_SCOPE = """\
rules:
  - name: everyone
    profiles: [numba]
    scope: site
  - name: publisher
    match: {partition: ci}
    scope: site
    publish: {users: [ws-alice]}
"""
SHOW = 'echo "$WARMSTART_CACHE $TMPDIR $NUMBA_CACHE_DIR $TORCHINDUCTOR_CACHE_DIR"'


@pytest.fixture
def own_store(site: Site, request: pytest.FixtureRequest) -> Path:
    """Put an empty store in force for this test. Return its path."""
    store = site.new_store(site.cluster.base / f"store-{re.sub(r'[^a-z]+', '-', request.node.name)}")
    site.write_policy(store=str(store))
    return store


def completed(site: Site, job_id: int) -> JobResult:
    """Wait for a job and its epilogs. Asserts that it is COMPLETED."""
    ended = site.finish(job_id)
    assert ended.state == "COMPLETED", ended
    return ended


def seeded(site: Site, job_id: int) -> int:
    """Return how many entries a job was seeded with."""
    return sum(event["entries"] for event in site.seeded(job_id))


def harvested(site: Site, job_id: int) -> int:
    """Return how many new entries a job's epilog harvested."""
    return sum(event["entries"] for event in site.harvested(job_id))


def compiled(site: Site, tool: str, user: str, node: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the tool's sample job. Return its id and the tool's own counters."""
    job_id = site.compile_job(tool, user, node, *arguments)
    return job_id, result(completed(site, job_id).output)


def test_four_jobs_of_two_users_share_one_import(
    site: Site, registry: Registry, fresh_image: Callable[[], str]
) -> None:
    """Four hooks on four nodes wait for one import, which downloads each blob once. All jobs read the same image."""
    image = fresh_image()
    script = '#!/bin/sh\nunsquashfs -s "$WARMSTART_IMAGE" && echo "$WARMSTART_IMAGE"\n'
    comment = f"--comment=warmstart: image={image}"
    jobs = [
        site.cluster.submit(script, user, comment, f"--nodelist={node}")
        for user, node in zip((ALICE, BOB) * 2, site.cluster.nodes, strict=True)
    ]
    paths = {completed(site, job_id).output.split()[-1] for job_id in jobs}
    assert len(paths) == 1
    assert Path(paths.pop()).is_file()
    assert sum(len(site.events(job_id, "image.imported")) for job_id in jobs) == 1
    assert {found["how"] for job_id in jobs for found in site.images(job_id)} <= {"waited", "reused"}
    downloads = {digest: registry.requests("GET", f"/blobs/{digest}") for digest in layers(image)}
    assert set(downloads.values()) == {1}


def test_the_second_node_is_warm_and_another_user_is_not(site: Site, own_store: Path) -> None:
    """By Numba's counters: all misses on n1, all hits on n2; ws-bob on n3 gets nothing of it."""
    need_module("numba")
    first, cold = compiled(site, "numba", ALICE, "n1")
    assert (cold["cache_hits"], cold["cache_misses"] > 0) == (0, True)
    assert (seeded(site, first), harvested(site, first) > 0) == (0, True)
    second, warm = compiled(site, "numba", ALICE, "n2")
    assert (warm["cache_hits"] > 0, warm["cache_misses"]) == (True, 0)
    assert seeded(site, second) == harvested(site, first)
    assert harvested(site, second) == 0
    assert {event["scope"] for event in site.harvested(first)} == {f"user-{site.cluster.account(ALICE).uid}-{ALICE}"}
    third, foreign = compiled(site, "numba", BOB, "n3")
    assert (foreign["cache_hits"], foreign["cache_misses"]) == (0, cold["cache_misses"])
    assert seeded(site, third) == 0


@pytest.mark.report
def test_a_tmpdir_that_is_not_there_is_nobodys_wish(site: Site, own_store: Path) -> None:
    """Slurm makes a login's TMPDIR on the node; where it cannot, it would set /tmp, also for the script's steps."""
    script = '#!/bin/sh\necho "has $TMPDIR"\nsrun sh -c \'echo "step $TMPDIR"\'\n'

    def output(tmpdir: str) -> str:
        job = site.cluster.submit(script, ALICE, "--nodelist=n1", env={"TMPDIR": tmpdir} if tmpdir else {})
        return completed(site, job).output

    new = f"{site.cluster.account(ALICE).home}/new"
    for tmpdir, seen in (("", f"{site.workspace}/"), ("/run/user/of-a-login", f"{site.workspace}/"), (new, new)):
        said = output(tmpdir)
        assert f"has {seen}" in said
        assert f"step {seen}" in said
        assert "TMPDIR" not in said
    said = output("/tmp")
    assert "has /tmp\n" in said
    assert said.count("warmstart: TMPDIR is /tmp: ") == 1


@pytest.mark.threat(3, 9)
def test_only_a_publisher_reaches_others(site: Site, own_store: Path) -> None:
    """In scope site ws-bob gets only what ws-alice compiled in the rule's partition."""
    site.write_policy(SITE_SCOPE, store=str(own_store))
    private, _ = compiled(site, "copy", ALICE, "n1")
    assert {event["scope"] for event in site.harvested(private)} != {"site"}
    published, cold = compiled(site, "copy", ALICE, "n2", "--partition=ci")
    # Her own private entries do not reach a job that publishes: it would pass them on.
    assert (seeded(site, published), cold["cache_hits"]) == (0, 0)
    assert {event["scope"] for event in site.harvested(published)} == {"site"}
    other, warm = compiled(site, "copy", BOB, "n3")
    assert warm["cache_misses"] == 0
    assert [event["scopes"] for event in site.seeded(other)] == [["site"]]


def test_the_environment_of_every_kind_of_step(site: Site) -> None:
    """The batch script, steps of one and of several tasks, and a step of salloc see the same kind of paths."""
    script = f"#!/bin/sh\n{SHOW}\nsrun --quiet --ntasks=1 sh -c '{SHOW}'\nsrun --quiet --ntasks=2 sh -c '{SHOW}'\n"
    ended = completed(site, site.cluster.submit(script, ALICE, "--nodelist=n1", "--ntasks=2"))
    lines = ended.output.splitlines()
    assert len(lines) == 4
    assert len(set(lines)) == 1
    salloc = site.cluster.run(["salloc", "--quiet", "--nodelist=n2", "srun", "sh", "-c", SHOW], ALICE)
    for line in (lines[0], salloc.stdout):
        cache, tmpdir, numba, inductor = line.split()
        place, _, run = cache.removesuffix("/cache").rpartition("/")
        assert place == str(site.workspace)
        assert (tmpdir, numba, inductor) == (f"{place}/{run}/tmp", f"{cache}/numba", f"{cache}/inductor")


def test_what_the_user_set_stays(site: Site) -> None:
    """A job's own TMPDIR and NUMBA_CACHE_DIR win; warmstart sets the rest."""
    home = site.cluster.account(ALICE).home
    own = {"TMPDIR": str(home), "NUMBA_CACHE_DIR": str(home / "numba")}
    ended = completed(site, site.cluster.submit(f"#!/bin/sh\n{SHOW}\n", ALICE, env=own))
    cache, tmpdir, numba, inductor = ended.output.split()
    assert (tmpdir, numba, inductor) == (own["TMPDIR"], own["NUMBA_CACHE_DIR"], f"{cache}/inductor")


def test_the_directories_are_the_jobs_alone(site: Site) -> None:
    """They have the job's uid, gid and mode 0700; other users cannot enter them."""
    stat = 'stat -c "%u %g %a %n" "$WARMSTART_CACHE" "$TMPDIR" "$NUMBA_CACHE_DIR"'
    job_id = site.cluster.submit(f"#!/bin/sh\n{stat}\nexec sleep 600\n", ALICE, "--nodelist=n1")
    wait_until("the job's lines", lambda: site.cluster.job(job_id).output.count("\n") == 3, 60)
    alice = site.cluster.account(ALICE)
    for line in site.cluster.job(job_id).output.splitlines():
        *owner, path = line.split()
        assert owner == [str(alice.uid), str(alice.gid), "700"]
        assert site.cluster.run(["ls", path], ALICE, node="n1").returncode == 0
        assert site.cluster.run(["ls", path], BOB, node="n1").returncode != 0
    site.cluster.cancel(job_id)
    site.finish(job_id)


def test_every_task_of_an_array_has_its_own_workspace(site: Site) -> None:
    """Four tasks of an array are four jobs with four caches, all removed afterwards."""
    home = site.cluster.account(BOB).home
    output = f"--output={home}/array-%a.out"
    site.cluster.submit('#!/bin/sh\necho "$WARMSTART_CACHE"\n', BOB, "--array=0-3", output)
    files = [home / f"array-{number}.out" for number in range(4)]
    wait_until("the array", lambda: all(f.is_file() and f.read_text().endswith("\n") for f in files), 60)
    site.cluster.wait_idle()
    caches = {file.read_text().strip() for file in files}
    assert len(caches) == 4
    assert not any(site.on_host(node, cache).exists() for cache in caches for node in site.cluster.nodes)


def test_both_components_of_a_heterogeneous_job_find_their_own(site: Site) -> None:
    """Tasks know only the leader's job id; so have their nodes' caches, at the same path."""
    script = f"#!/bin/sh\nsrun --het-group=0 sh -c '{SHOW}'\nsrun --het-group=1 sh -c '{SHOW}'\n"
    job_id = site.cluster.submit(script, ALICE, "--nodelist=n1", ":", "--nodelist=n2")
    leader, second = completed(site, job_id).output.splitlines()
    assert leader.startswith(f"{site.workspace}/{job_id}.")
    assert second == leader

"""Whose fault decides, on real Slurm: jobs get a message, and only a broken node drains.

That no node is drained and that no job leaves anything behind is checked after every test by `site` itself.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from tests.lib import mounts
from tests.lib.accounts import ALICE, BOB
from tests.lib.processes import wait_until
from tests.lib.site import RULES, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lib.cluster import JobResult
    from tests.lib.registry import Registry

RUN_WITHOUT = f"{RULES}on_error: {{image: run-without}}\n"
SHOW = '#!/bin/sh\necho "image=$WARMSTART_IMAGE cache=$WARMSTART_CACHE"\n'


def wanting(site: Site, image: str, user: str = ALICE) -> JobResult:
    """Run a job that requests an image."""
    return site.finish(site.cluster.submit(SHOW, user, f"--comment=warmstart: image={image}"))


def said(job: JobResult) -> list[str]:
    """Return warmstart's lines in the job's output."""
    return [line for line in job.output.splitlines() if line.startswith("warmstart: ")]


@pytest.mark.threat(11)
@pytest.mark.parametrize(
    ("comment", "sentence"),
    [
        ("image=other.example.com/team/app:1", "other.example.com"),
        ("image={registry}/nobody/nothing:1", "image {registry}/nobody/nothing:1 does not exist"),
        ("image={registry}/Team:1", "is not an image reference"),
        ("nonsense", "'nonsense'"),
        ("profiles=abacus", "the profile 'abacus'"),
    ],
)
def test_a_wish_that_cannot_be_met(site: Site, comment: str, sentence: str) -> None:
    """The job fails before its script starts, with one sentence and a hint in its output."""
    wish = comment.format(registry=site.registry)
    job = site.finish(site.cluster.submit(SHOW, ALICE, f"--comment=warmstart: {wish}"))
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 1, 0)
    sentences = said(job)
    assert sentence.format(registry=site.registry) in sentences[0]
    assert len(sentences) == 2  # the reason, and the hint
    assert "\nimage=" not in f"\n{job.output}"  # the script did not run
    assert len(site.events(job.job_id, "job.refused")) == 1


def test_a_wish_that_cannot_be_met_fails_the_steps_of_salloc(site: Site) -> None:
    """The allocation succeeds; its srun prints the sentence and fails."""
    comment = "--comment=warmstart: image=other.example.com/app:1"
    done = site.cluster.run(["salloc", "--quiet", "--nodelist=n2", comment, "srun", "echo", "ran"], BOB)
    assert done.returncode != 0
    assert done.stdout.startswith("warmstart: ")
    assert "ran" not in done.stdout.splitlines()


@pytest.fixture
def registry_down(registry: Registry, fresh_image: Callable[[], str]) -> Iterator[str]:
    """Return the name of an image that a registry had before it was stopped."""
    image = fresh_image()
    registry.stop()
    try:
        yield image
    finally:
        registry.__enter__()  # the same port, the same data


def test_a_registry_that_is_down_refuses_the_job(site: Site, registry_down: str) -> None:
    """A missing image is a verdict; otherwise every node would import it on its own."""
    job = wanting(site, registry_down)
    assert job.state == "FAILED"
    assert "its registry does not serve it now" in said(job)[0]


def test_a_registry_that_is_down_with_run_without(site: Site, registry_down: str) -> None:
    """The policy lets the job run without its image, with a notice."""
    site.write_policy(RUN_WITHOUT)
    job = wanting(site, registry_down)
    assert job.state == "COMPLETED"
    assert "its registry does not serve it now" in said(job)[0]
    assert "image= cache=/" in job.output


def test_a_comment_that_is_not_understood_is_refused_at_submission(site: Site) -> None:
    """By the function for a site's cli_filter, as its file says to call it."""
    etc = site.cluster.base / "etc-lua"
    shutil.copytree(site.cluster.base / "etc", etc)
    with (etc / "slurm.conf").open("a") as file:
        file.write("CliFilterPlugins=cli_filter/lua\n")
    program = site.cluster.prefix / "share/warmstart/warmstart.lua"
    shown = [line.removeprefix("--     ") for line in program.read_text().splitlines() if line.startswith("--     ")]
    others = [f"function slurm_cli_{name}() return slurm.SUCCESS end\n" for name in ("setup_defaults", "post_submit")]
    (etc / "cli_filter.lua").write_text("\n".join([*shown, *others]))

    def submitted(comment: str) -> tuple[str, str]:
        argv = ["sbatch", "--parsable", "--wrap=true", f"--comment={comment}"]
        done = site.cluster.run(argv, ALICE, env={"SLURM_CONF": str(etc / "slurm.conf")})
        return done.stdout.strip(), done.stderr

    job, told = submitted("warmstart: imgae=a/b:1")
    assert (job, 'the comment has "imgae=a/b:1", which warmstart does not understand' in told) == ("", True), told
    job, told = submitted("Warmstart : profiles=numba fresh")
    assert (site.finish(int(job)).state, told) == ("COMPLETED", "")


def test_a_store_that_is_not_there(site: Site) -> None:
    """Its file system is not mounted: the job runs cold with one notice, and its epilog ends well."""
    away = site.store.with_name("store-away")
    site.store.rename(away)
    try:
        job = site.finish(site.cluster.submit(SHOW, ALICE))
    finally:
        away.rename(site.store)
    assert job.state == "COMPLETED"
    (notice,) = said(job)
    assert "the job runs without it" in notice
    kinds = {(event["hook"], event["step"], event["error"]["kind"]) for event in site.events(job.job_id, "step.failed")}
    assert kinds == {("prolog", "seed", "store")}
    assert [event["status"] for event in site.events(job.job_id, "hook.finished")] == [0, 0]
    assert not os.path.lexists(away)


@pytest.mark.threat(12)
def test_a_read_only_workspace_drains_the_node(site: Site) -> None:
    """No job can make a file system read-only: the node drains, and sinfo has the reason."""
    with mounts.tmpfs(site.workspace / "n4") as disk, mounts.read_only(disk):
        job_id = site.cluster.submit(SHOW, ALICE, "--nodelist=n4")
        wait_until("n4 to drain", lambda: site.cluster.drained() == ["n4"], 60)
        reason = site.cluster.node_states()["n4"].reason
        site.cluster.wait_for(job_id, {"PENDING"})
        site.cluster.cancel(job_id)
        site.cluster.wait_idle()
    assert reason.startswith(f"warmstart: cannot use the workspace {site.workspace}: Read-only file system")
    assert len(site.events(job_id, "node.drained")) == 1
    site.cluster.resume("n4")
    assert site.finish(site.cluster.submit(SHOW, ALICE, "--nodelist=n4")).state == "COMPLETED"


@pytest.mark.threat(12)
@pytest.mark.parametrize(
    ("fill", "full"),
    [
        ('dd if=/dev/zero of="$TMPDIR/all" bs=64k 2>/dev/null', {"size": "1m"}),
        ('i=0; while touch "$TMPDIR/$i" 2>/dev/null; do i=$((i + 1)); done', {"inodes": 100}),
    ],
    ids=["space", "inodes"],
)
def test_a_disk_that_another_user_filled(site: Site, fill: str, full: dict[str, int | str]) -> None:
    """While ws-bob's job fills the node's disk, ws-alice's runs, cold, and is told."""
    site.finish(site.compile_job("copy", ALICE, "n1"))  # there is something to seed
    home = site.cluster.account(BOB).home
    go = home / f"go-{time.time_ns()}"
    script = f"#!/bin/sh\n{fill}\necho filled\nwhile [ ! -e {go} ]; do sleep 0.1; done\n"
    with mounts.tmpfs(site.workspace / "n3", **full):  # type: ignore[arg-type]
        hog = site.cluster.submit(script, BOB, "--nodelist=n3")
        try:
            wait_until("a full disk", lambda: "filled" in site.cluster.job(hog).output, 60)
            job = site.cluster.wait(site.cluster.submit(SHOW, ALICE, "--nodelist=n3"))
        finally:
            go.touch()
        assert site.finish(hog).state == "COMPLETED"
        assert os.listdir(site.workspace / "n3") == []
    assert job.state == "COMPLETED"
    kinds = {event["error"]["kind"] for event in site.events(job.job_id, "step.failed")}
    ways = [event["way"] for event in site.events(job.job_id, "cache.seeded")]
    (told,) = said(job)
    assert "its disk has less than 1 GiB, or a twentieth of its space or inodes, free" in told
    assert (kinds, ways) == ({"resource"}, [])

"""Whose fault decides, on real Slurm: jobs get a message, and only a broken node drains.

That no node is drained and that no job leaves anything behind is checked after every test by `site` itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lib import installation, mounts
from tests.lib.accounts import ALICE, BOB
from tests.lib.processes import wait_until
from tests.lib.site import RULES, Site
from warmstart import wing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lib.cluster import JobResult
    from tests.lib.registry import Registry

REPOSITORY = Path(__file__).parents[2]
SHOW = '#!/bin/sh\necho "image=$WARMSTART_IMAGE cache=$WARMSTART_CACHE"\n'


def run(site: Site, *options: str, user: str = ALICE) -> JobResult:
    """Run a job that shows what it was given."""
    return site.finish(site.cluster.submit(SHOW, user, *options))


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
    job = run(site, f"--comment=warmstart: {comment.format(registry=site.registry)}")
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 1, 0)
    sentences = said(job)
    assert sentence.format(registry=site.registry) in sentences[0]
    assert len(sentences) == 2  # the reason, and the hint
    assert "\nimage=" not in f"\n{job.output}"  # the script did not run
    assert len(site.failures(job.job_id, "refused")) == 1


def test_a_wish_that_cannot_be_met_fails_the_steps_of_salloc(site: Site) -> None:
    """The allocation succeeds; its srun prints the sentence and fails."""
    comment = "--comment=warmstart: image=other.example.com/app:1"
    done = site.cluster.run(["salloc", "--quiet", "--nodelist=n2", comment, "srun", "echo", "ran"], BOB)
    assert done.returncode != 0
    assert done.stdout.startswith("warmstart: ")
    assert "ran" not in done.stdout.splitlines()


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


def test_a_registry_that_is_down(site: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    """A missing image is a verdict, as every node would import it on its own; the policy may say otherwise."""
    wanted = f"--comment=warmstart: image={fresh_image()}"
    registry.stop()
    try:
        refused = run(site, wanted)
        site.write_policy(f"{RULES}on_error: {{image: run-without}}\n")
        without = run(site, wanted)
    finally:
        registry.__enter__()  # the same port, the same data
    for job, state in ((refused, "FAILED"), (without, "COMPLETED")):
        assert (job.state, "its registry does not serve it now" in said(job)[0]) == (state, True), job
    assert "image= cache=/" in without.output


def test_a_store_that_is_not_there(site: Site) -> None:
    """Its file system is not mounted: the job runs cold with one notice, and its epilog ends well."""
    away = site.store.with_name("store-away")
    site.store.rename(away)
    try:
        job = run(site)
    finally:
        away.rename(site.store)
    assert job.state == "COMPLETED"
    (notice,) = said(job)
    assert "the job runs without it" in notice
    kinds = {(event["hook"], event["step"], event["kind"]) for event in site.failures(job.job_id)}
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
    assert reason.startswith(f"warmstart: cannot use {site.workspace}: Read-only file system")
    assert len(site.events(job_id, "node.drained")) == 1
    site.cluster.resume("n4")
    assert run(site, "--nodelist=n4").state == "COMPLETED"


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
    go = site.cluster.account(BOB).home / f"go-{time.time_ns()}"
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
    kinds = {event["kind"] for event in site.failures(job.job_id)}
    ways = [event["way"] for event in site.seeded(job.job_id)]
    (told,) = said(job)
    assert "its disk has less than 1 GiB, or a twentieth of its space or inodes, free" in told
    assert (kinds, ways) == ({"resource"}, [])


@pytest.mark.threat(19)
def test_a_broken_edit_of_the_policy(site: Site) -> None:
    """The last good policy stays in force, and every job's audit says so."""
    run(site)  # the good one is compiled
    installation.write_policy(site.cluster.prefix, "version: 1\nrulez: []\n")
    job = run(site)
    assert (job.state, "cache=/" in job.output) == ("COMPLETED", True)
    rejected = site.events(job.job_id, "policy.rejected")
    assert [event["hook"] for event in rejected] == ["prolog", "epilog"]
    assert {event["in_force"] for event in rejected} == {"the last good one"}
    assert "rulez" in rejected[0]["error"]["reason"]


def start(site: Site) -> tuple[int, Path]:
    """Start a job on n1 that ends when the file is there that is returned with it."""
    go = site.cluster.base / f"go-{time.time_ns()}"
    job = site.cluster.submit(f"{SHOW}while [ ! -e {go} ]; do sleep 0.1; done\n", ALICE, "--nodelist=n1")
    wait_until("the job", lambda: "cache=/" in site.cluster.job(job).output, 60)
    return job, go


@pytest.fixture
def reinstalled(site: Site, install: Callable[[Path], None]) -> Iterator[Site]:
    """Return the site; what a test breaks of its programs is installed again."""
    yield site
    site.cluster.wait_idle()
    install(site.cluster.prefix)


def test_without_an_interpreter_or_a_release_jobs_run_without_warmstart(reinstalled: Site) -> None:
    """As after an upgrade of the distribution. The job that runs then ends, too; what is left is maintenance's."""
    site = reinstalled
    job, go = start(site)
    for hook in ("prolog", "epilog"):
        path = site.cluster.prefix / "libexec/warmstart" / hook
        broken = path.read_text().replace("python=/", "python=/gone/")
        assert path.read_text() != broken
        path.write_text(broken)
    go.touch()
    assert site.finish(job).state == "COMPLETED"
    assert "cache=\n" in run(site, "--nodelist=n1").output
    for hook in ("prolog", "epilog"):
        path = site.cluster.prefix / "libexec/warmstart" / hook
        path.write_text(path.read_text().replace("python=/gone/", "python=/"))
    assert site.run_hook("epilog", site.variables(job)).returncode == 0
    release = site.cluster.prefix / "lib/warmstart/python"
    target = os.readlink(release)
    release.unlink()
    assert "cache=\n" in run(site, "--nodelist=n1").output
    told = site.run_hook("prolog", site.variables(920001))
    assert (told.returncode, "did nothing" in told.stderr, str(release) in told.stderr) == (0, True, True)
    release.symlink_to(target)


def test_uninstalled_under_a_running_job(reinstalled: Site) -> None:
    """Its epilog still removes its workspace, and then nothing is left but hooks that do nothing."""
    site, prefix = reinstalled, reinstalled.cluster.prefix
    job, go = start(site)
    command = [*site.cluster.enter("n1"), "/usr/bin/make", "-s", "-C", str(REPOSITORY), "uninstall", f"PREFIX={prefix}"]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "until the jobs that run here have ended" in told.stderr
    second = site.cluster.wait(site.cluster.submit(SHOW, ALICE, "--nodelist=n1"))
    assert "cache=\n" in second.output
    assert (prefix / "lib/warmstart").exists()
    go.touch()
    assert site.cluster.wait(job).state == "COMPLETED"
    # The last epilog leaves that to a process, which removes what is left of the job first, for ten minutes.
    wait_until("the end of the programs", lambda: not (prefix / "lib/warmstart/leave").exists(), 300)
    wait_until("the end of the mounts", lambda: site.leftovers() == [], 60)
    assert {"epilog", "job-container", "prolog", "task-prolog", *wing.programs()} == {
        *os.listdir(prefix / "libexec/warmstart")
    }
    assert "cache=\n" in site.cluster.wait(site.cluster.submit(SHOW, ALICE, "--nodelist=n1")).output

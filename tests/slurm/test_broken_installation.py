"""Programs that go while jobs run: no node drains, and what jobs were given is taken back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE
from tests.lib.cluster import Cluster
from tests.lib.processes import wait_until
from tests.lib.site import Site
from warmstart import wing

REPOSITORY = Path(__file__).parents[2]
SHOW = '#!/bin/sh\necho "cache ${WARMSTART_CACHE-none}"\n'
WAIT = SHOW + "while [ ! -e {go} ]; do sleep 0.1; done\n"


@pytest.fixture
def own(capable_host: None, install: Callable[[Path], None]) -> Iterator[Site]:
    """Yield a site that a test may break."""
    with Cluster() as cluster:
        yield Site(cluster, install=install)


def run(site: Site) -> str:
    """Run a job on n1; return what it saw."""
    job = site.finish(site.cluster.submit(SHOW, ALICE, "--nodelist=n1"))
    assert job.state == "COMPLETED", job
    return job.output.strip()


def start(site: Site, go: Path) -> int:
    """Start a job on n1 that ends when `go` is there."""
    job = site.cluster.submit(WAIT.replace("{go}", str(go)), ALICE, "--nodelist=n1")
    wait_until("the job", lambda: "cache /" in site.cluster.job(job).output, 60)
    return job


def test_without_an_interpreter_jobs_run_without_warmstart(own: Site) -> None:
    """As after an upgrade of the distribution. The job that runs then ends, too; what is left is maintenance's."""
    go = own.cluster.base / "go"
    job = start(own, go)
    texts = {hook: own.cluster.prefix / "libexec/warmstart" / hook for hook in ("prolog", "epilog")}
    whole = {hook: path.read_text() for hook, path in texts.items()}
    for hook, path in texts.items():
        path.write_text(whole[hook].replace("python=/", "python=/gone/"))
        assert path.read_text() != whole[hook]
    go.touch()
    assert own.finish(job).state == "COMPLETED"
    assert run(own) == "cache none"
    for hook, path in texts.items():
        path.write_text(whole[hook])
    assert run(own).startswith("cache /")


def test_without_a_release_jobs_run_without_warmstart(own: Site) -> None:
    """Somebody removed it by hand. The hook says what is missing."""
    release = own.cluster.prefix / "lib/warmstart/python"
    target = os.readlink(release)
    release.unlink()
    assert run(own) == "cache none"
    said = own.run_hook("prolog", own.variables(920001))
    assert (said.returncode, "did nothing" in said.stderr, str(release) in said.stderr) == (0, True, True)
    release.symlink_to(target)


def test_uninstalled_under_a_running_job(own: Site) -> None:
    """Its epilog still removes its workspace, and then nothing is left but hooks that do nothing."""
    go, lib = own.cluster.base / "go", own.cluster.prefix / "lib/warmstart"
    job = start(own, go)
    assert own.runs("n1")
    command = ["/usr/bin/make", "-s", "uninstall", f"PREFIX={own.cluster.prefix}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    assert "until the jobs that run here have ended" in said.stderr
    second = own.cluster.submit(SHOW, ALICE, "--nodelist=n2")
    assert own.cluster.wait(second).output.strip() == "cache none"
    assert lib.exists()
    go.touch()
    assert own.cluster.wait(job).state == "COMPLETED"
    try:  # the last epilog leaves that to a process, which removes what is left of the job first, for ten minutes
        wait_until("the end of the programs", lambda: not (lib / "python").exists(), 300)
    except TimeoutError as error:
        kept = [str(path) for path in own.var.glob("*/state/*/*")] + [
            str(path) for path in own.var.glob("*/errands/*/*")
        ]
        leaving = subprocess.run(["pgrep", "-af", "leave"], check=False, capture_output=True, text=True).stdout
        pytest.fail(f"{error}; kept {kept}; {sorted(os.listdir(lib))}; processes: {leaving}")
    wait_until("the end of the mounts", lambda: own.leftovers() == [], 60)
    assert own.runs("n1") == []
    assert sorted(os.listdir(own.cluster.prefix / "libexec/warmstart")) == sorted(
        ["epilog", "job-container", "prolog", "task-prolog", *wing.programs()]
    )
    assert own.cluster.wait(own.cluster.submit(SHOW, ALICE, "--nodelist=n1")).output.strip() == "cache none"

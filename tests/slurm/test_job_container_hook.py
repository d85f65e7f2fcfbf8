"""The hook `job-container`, run by hand as Slurm 24.11's CloneNSScript, in a job's mount namespace."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE
from tests.lib.site import Site

JOBS = count(990001)


@pytest.fixture
def job_id() -> int:
    """Yield a job id that no other test uses."""
    return next(JOBS)


@contextmanager
def a_namespace(site: Site, node: str = "n1") -> Iterator[str]:
    """Yield a mount namespace as job_container makes it, after the job's prolog."""
    holder = subprocess.Popen(
        [
            *site.cluster.enter(node),
            "/usr/bin/unshare",
            "--mount",
            "--propagation",
            "private",
            "/bin/sh",
            "-c",
            "echo; read end",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield f"/proc/{process.pid}/ns/mnt"
        process.communicate("\n")


@pytest.fixture
def namespace(site: Site, job_id: int) -> Iterator[str]:
    """Yield a job's mount namespace. The epilog runs at the end."""
    site.write_policy(constant="namespace")
    assert site.run_hook("prolog", site.variables(job_id)).returncode == 0
    with a_namespace(site) as made:
        yield made
    assert site.run_hook("epilog", site.variables(job_id)).returncode == 0
    site.constant.rmdir()


def run_hook(site: Site, job_id: int, namespace: str, user: str = ALICE) -> list[str]:
    """Run the hook, which always ends with 0. Return the reasons in the audit."""
    done = site.run_hook("job-container", site.variables(job_id, user, SLURM_NS=namespace))
    assert (done.returncode, done.stdout) == (0, "")
    failed = [event["error"] for event in site.events(job_id, "step.failed")]
    assert {error["code"] for error in failed} <= {"not-shown"}
    return [error["reason"] for error in failed]


def mounts(site: Site, namespace: str, path: Path | None = None) -> list[str]:
    """Return the options of mounts in the namespace at a path, or at the constant path."""
    argv = ["/usr/bin/nsenter", f"--mount={namespace}", "/bin/cat", "/proc/self/mountinfo"]
    lines = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split()[5] for line in lines if line.split()[4] == str(path or site.constant)]


def as_alice(site: Site, namespace: str, *argv: str | Path) -> str:
    """Run a command in the namespace as the job's user; return what it says."""
    own = site.cluster.account(ALICE)
    enter = ["/usr/bin/nsenter", f"--mount={namespace}", f"--setuid={own.uid}", f"--setgid={own.gid}"]
    return subprocess.run([*enter, *argv], check=False, capture_output=True, text=True).stdout


def test_the_job_alone_sees_its_cache_there(site: Site, job_id: int, namespace: str) -> None:
    """Nosuid and nodev. Files written there are in the job's workspace. A second run changes nothing."""
    assert [run_hook(site, job_id, namespace), run_hook(site, job_id, namespace)] == [[], []]
    (options,) = mounts(site, namespace)
    assert {"rw", "nosuid", "nodev"} <= set(options.split(","))
    as_alice(site, namespace, "/usr/bin/touch", site.constant / "marker")
    (name,) = site.runs()
    assert (site.workspace / "n1" / name / "cache" / "marker").exists()
    assert os.listdir(site.constant) == []


@pytest.mark.threat(4)
@pytest.mark.parametrize("case", ["others' parent", "a link", "another user's job"])
def test_what_only_root_can_change_or_nothing(site: Site, job_id: int, namespace: str, case: str) -> None:
    """Otherwise root would mount on a file of a job. The job starts all the same."""
    reasons = 1
    if case == "others' parent":
        site.cluster.base.chmod(0o777)
    elif case == "a link":
        site.constant.symlink_to("/usr")
    else:
        reasons = 0
    try:
        failed = run_hook(site, job_id, namespace, "ws-bob" if case == "another user's job" else ALICE)
    finally:
        site.cluster.base.chmod(0o755)
        if case == "a link":
            site.constant.unlink()
        site.constant.mkdir(exist_ok=True)
    assert len(failed) == reasons, failed
    assert mounts(site, namespace) == []

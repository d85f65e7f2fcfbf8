"""The hook `job-container`, run by hand as Slurm 24.11's CloneNSScript, in a mount namespace as a job has it."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from tests.lib.accounts import ALICE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lib.site import Site

JOBS = count(990001)  # ids that no other test uses


@contextmanager
def a_namespace(site: Site, node: str = "n1") -> Iterator[str]:
    """Yield a mount namespace as job_container makes it, after the job's prolog."""
    unshare = ["/usr/bin/unshare", "--mount", "--propagation=private", "/bin/sh", "-c", "echo; read end"]
    with subprocess.Popen(
        [*site.cluster.enter(node), *unshare], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield f"/proc/{process.pid}/ns/mnt"
        process.communicate("\n")


def run_hook(site: Site, job_id: int, namespace: str, user: str = ALICE) -> list[str]:
    """Run the hook, which always ends with 0. Return the reasons in the audit."""
    done = site.run_hook("job-container", site.variables(job_id, user, SLURM_NS=namespace))
    assert (done.returncode, done.stdout) == (0, "")
    failed = site.failures(job_id)
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

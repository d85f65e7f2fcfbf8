"""Jobs whose prolog and epilog are run by hand, so that several can be at work in any order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lib.accounts import ALICE
from tests.lib.site import Site


class HandJob:
    """A job between its prolog and its epilog, both run by hand on one node."""

    def __init__(self, site: Site, job_id: int, node: str) -> None:
        self.site, self.job_id, self.node = site, job_id, node
        self._slurm = site.variables(job_id, ALICE, node)
        assert site.run_hook("prolog", self._slurm).returncode == 0
        program = str(site.cluster.prefix / "libexec/warmstart/task-prolog")
        told = {"SLURM_JOB_ID": str(job_id), "SLURMD_NODENAME": node}
        printed = site.cluster.run([program], ALICE, env=told, node=node).stdout.splitlines()
        lines = (line.removeprefix("export ") for line in printed if line.startswith("export "))
        self.variables = dict(line.split("=", 1) for line in lines)

    def place(self, name: str) -> Path:
        """Return where this process finds what a variable of the job leads to."""
        return self.site.on_host(self.node, self.variables[name])

    def run(self, script: str) -> str:
        """Run a shell script as the job's user, with the job's variables; return what it prints."""
        done = self.site.cluster.run(["/bin/sh", "-euc", script], ALICE, env=self.variables, node=self.node)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def end(self) -> None:
        """Run the epilog."""
        assert self.site.run_hook("epilog", self._slurm).returncode == 0


@contextmanager
def a_job(site: Site, job_id: int, node: str = "n1") -> Iterator[HandJob]:
    """Give a job; its epilog runs at the end of the `with`."""
    job = HandJob(site, job_id, node)
    try:
        yield job
    finally:
        job.end()

"""From a package that is installed to the first warm job, on a cluster of four nodes; says each step with the time.

Run by `tools.transcript` in a root file system of `tests/packages/fresh`, with the second in which it began.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.cluster.accounts import ALICE
from tests.cluster.cluster import Cluster
from tests.cluster.site import Site, result
from tools.terminal import captured


def main(started: float) -> None:
    """Write a policy, ask doctor, run two jobs."""

    def say(command: str, output: str) -> None:
        seconds = int(time.time() - started)
        text = f"$ {command}  # {seconds // 60:02}:{seconds % 60:02}\n{output.strip()}\n\n"
        sys.stdout.write(text.replace(str(cluster.base), "/shared"))

    with Cluster(Path("/usr")) as cluster:
        for name in ("slurm.conf", "warmstart.conf"):
            Path("/etc/slurm", name).symlink_to(cluster.base / "etc" / name)
        say("systemctl start munge slurmctld slurmd", cluster.admin("sinfo"))
        site = Site(cluster, install=lambda _: None)
        say("cat /etc/warmstart/policy.yaml", (site.etc / "policy.yaml").read_text())
        for command in ("policy check", "doctor"):
            say(f"warmstart {command}", captured(["/usr/bin/warmstart", *command.split()]))
        for node in ("n1", "n2"):
            job = site.finish(site.compile_job("numba", ALICE, node))
            if job.state != "COMPLETED":
                raise RuntimeError(job.output)
            printed = result(job.output)
            said = f"compiling took {float(printed['seconds']):.1f} s, cache hits: {printed['cache_hits']}"
            say(f"sbatch --nodelist={node} numba_job.sh", f"job {job.job_id} on {node}: {said}")
        if not printed["cache_hits"]:
            raise RuntimeError("the second job was not warm")
        say(f"warmstart explain {job.job_id}", captured(["/usr/bin/warmstart", "explain", str(job.job_id)]))


if __name__ == "__main__":
    main(float(sys.argv[1]))

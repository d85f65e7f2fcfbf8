"""Whether a job has its head node for itself, as far as a hook can know without asking Slurm.

From 23.02 on Slurm says so (SLURM_JOB_OVERSUBSCRIBE; values: squeue(1), OverSubscribe). 22.05 tells a hook
only how many processors the job has there: all of the host's leave no neighbour any, unless the partition has
OverSubscribe=FORCE or YES. Anything else is taken for shared.
"""

from __future__ import annotations

import os

from warmstart.job import Job


def has_first_node_alone(job: Job) -> bool:
    """Tell it, on the job's first node; `cpus_per_node` has the form `4(x2),2`."""
    if job.oversubscribe:
        return job.oversubscribe == "NO"
    cpus = job.cpus_per_node.partition(",")[0].partition("(")[0]
    return cpus.isdigit() and int(cpus) >= (os.cpu_count() or 1)

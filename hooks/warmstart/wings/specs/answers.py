"""pyslurm's answers for slurmctld, where it is installed for the running release of Slurm.

Of another release it may crash or return nonsense. It runs in a child of its own, because libslurm cannot be
interrupted. A query that fails there is not repeated through a command.
"""

from __future__ import annotations

import os

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.slurm import commands
from warmstart.slurm.facts import Access, JobFacts
from warmstart.wings.specs import pyslurm_lookup
from warmstart.wings.specs.client import ask_pyslurm

NAME = "pyslurm"


def fits(access: Access, deadline: Deadline) -> bool:
    """Return whether it is installed for the release of Slurm that runs, and can be loaded."""
    installed = pyslurm_lookup.release(access.libraries) if os.path.isdir(access.libraries) else ""
    return (
        bool(installed)
        and commands.release(access, deadline).startswith(f"{installed}.")
        and ask_pyslurm(_identity(access), access, deadline, pyslurm_lookup.loads)
    )


def job(access: Access, job_id: int, deadline: Deadline) -> JobFacts | None:
    """Return a job; None if slurmctld does not know it any more."""
    return ask_pyslurm(_identity(access), access, deadline, pyslurm_lookup.job, job_id)


def enforced(access: Access, deadline: Deadline) -> list[str]:
    """Return AccountingStorageEnforce, lower case; [] for none."""
    return ask_pyslurm(_identity(access), access, deadline, pyslurm_lookup.enforced)


def _identity(access: Access) -> Identity:
    return access.identity or Identity("this process", os.geteuid(), os.getegid())

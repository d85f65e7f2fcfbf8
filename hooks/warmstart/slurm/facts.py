"""How slurmctld is reached, and what it says about jobs and its settings, whatever it was queried through."""

from __future__ import annotations

import re
from typing import NamedTuple

from warmstart.host.identity import Identity

# Slurm's job states that are final; COMPLETING is not among them (squeue(1), JOB STATE CODES).
FINAL = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED"}
)
COMPLETING = "COMPLETING"


class Access(NamedTuple):
    """How to reach slurmctld."""

    scontrol: str  # squeue is in the same directory
    slurm_conf: str = ""  # "" if Slurm finds it by itself
    libraries: str = ""  # directory of what an administrator has installed for Python (`Installation.slurm_libraries`)
    identity: Identity | None = None  # that queries run as; None: as this process


class JobFacts(NamedTuple):
    """A job as slurmctld has it now. No field has text of the job's owner."""

    job_id: int
    state: str  # long form, such as RUNNING (squeue(1), JOB STATE CODES)
    qos: str  # "" without one
    array: str  # JOBID_TASKID of a task, "" of a job that is in no array; a pending array's tasks have several ids
    eligible: int  # epoch seconds at which the job may start at the earliest, 0 if unknown

    @property
    def is_over(self) -> bool:
        """Whether the job has ended for good."""
        return self.state in FINAL

    @property
    def has_left_its_nodes(self) -> bool:
        """Whether nothing of it starts any more on the nodes that it had: it has ended, or it will be requeued."""
        return self.is_over or self.state == COMPLETING


class Settings(NamedTuple):
    """Settings of the running slurmctld with all defaults, by their names in slurm.conf(5)."""

    values: dict[str, list[str]]  # several of a key like Prolog, from Slurm 24.05 on; [] of what is not set

    def all(self, key: str) -> list[str]:
        """Return the values of a key that may have several."""
        return self.values.get(key, [])

    def one(self, key: str) -> str:
        """Return the value of a key, "" if it is not set."""
        return next(iter(self.all(key)), "")

    def seconds(self, key: str) -> int:
        """Return the value of a key in seconds, 0 if it is not set."""
        number = re.match(r"\d{1,10}", self.one(key))
        return int(number[0]) if number else 0

    def words(self, key: str) -> list[str]:
        """Return a comma-separated list, [] for none."""
        return [word for word in self.one(key).split(",") if word and word.lower() != "none"]

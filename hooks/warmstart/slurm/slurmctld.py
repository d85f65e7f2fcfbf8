"""Queries to slurmctld: one interface over pyslurm and Slurm's commands. Never on a node's hot path.

| asked by | what |
|---|---|
| prolog-slurmctld | a job's QOS, before Slurm 25.11 |
| a prolog that requeues its job | whether the job is a task of an array, if no spec tells |
| a prolog that waits long for an image, on the job's first node | whether its job is over |
| maintenance | whether a job without a step daemon is over |
| a background import | whether the jobs that wait for the image are pending |
| a prefetch of images | which jobs are pending, and what they ask for |
| maintenance, a hook that compiles the policy, doctor | what slurmctld enforces, and which hooks it runs |

pyslurm is used where it is installed for the running release of Slurm: of another release it may crash or return
nonsense. It runs in a child of its own, because libslurm cannot be interrupted. A query that fails there is not
repeated through a command. Elsewhere `squeue` and `scontrol` are run, with formats that no text of a user is in, or
as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.slurm import commands, pyslurm_lookup
from warmstart.slurm.client import ask_pyslurm
from warmstart.slurm.facts import Access, Configuration, JobFacts
from warmstart.slurm.pending import PendingJob

QUERY_S = 10.0
PYSLURM, COMMANDS = "pyslurm", "squeue"
_P = ParamSpec("_P")
_Answer = TypeVar("_Answer")


class LookUpFailed(ResourceError):
    """slurmctld could not be queried, or not in time, or its answer is not clear."""

    code = "look-up-failed"
    template = "cannot ask slurmctld about {what}: {problem}"
    hint = "is slurmctld slow? in its own hooks raise slurmctld.deadline; from Slurm 25.11 on they need no query"


class Slurmctld:
    """The running controller. Methods raise `LookUpFailed`."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._identity = access.identity or Identity("this process", os.geteuid(), os.getegid())
        self._source = ""  # until the first query

    @property
    def source(self) -> str:
        """`pyslurm` or `squeue`: what answered the last query; "" before the first."""
        return self._source

    def job(self, job_id: int, deadline: Deadline) -> JobFacts | None:
        """Return a job; None if slurmctld does not know it any more."""
        with _problems(f"job {job_id}"):
            jobs = [job for job in self._jobs([job_id], deadline) if job.job_id == job_id]
            return jobs[0] if jobs else None

    def jobs(self, job_ids: list[int], deadline: Deadline) -> list[JobFacts]:
        """Return those of the jobs that slurmctld knows. One query for all."""
        with _problems(f"{len(job_ids)} jobs"):
            return self._jobs(job_ids, deadline) if job_ids else []

    def pending(self, deadline: Deadline) -> list[PendingJob]:
        """Return the jobs that wait and can start as they are, by priority, at most `slurm.pending.MOST`. One query."""
        with _problems("pending jobs"):
            jobs = self._by_pyslurm(deadline, pyslurm_lookup.pending)
            return commands.pending(self._access, deadline) if jobs is None else jobs

    def configuration(self, deadline: Deadline) -> Configuration:
        """Return settings that are in force, whatever slurm.conf says by now."""
        with _problems("its configuration"):
            answer = self._by_pyslurm(deadline, pyslurm_lookup.configuration)
            return commands.configuration(self._access, deadline) if answer is None else answer

    def _jobs(self, job_ids: list[int], deadline: Deadline) -> list[JobFacts]:
        jobs = self._by_pyslurm(deadline, pyslurm_lookup.jobs, job_ids)
        return commands.jobs(self._access, job_ids, deadline) if jobs is None else jobs

    def _by_pyslurm(
        self,
        deadline: Deadline,
        query: Callable[Concatenate[str, str, _P], _Answer | None],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _Answer | None:
        """Return pyslurm's answer; None if commands are to be asked, now and from now on."""
        if not self._source:
            self._source = PYSLURM if self._has_fitting_pyslurm(deadline) else COMMANDS
        if self._source == COMMANDS:
            return None
        answer = ask_pyslurm(self._identity, self._access, deadline, query, *args, **kwargs)
        if answer is None:
            self._source = COMMANDS
        return answer

    def _has_fitting_pyslurm(self, deadline: Deadline) -> bool:
        installed = pyslurm_lookup.release(self._access.libraries) if os.path.isdir(self._access.libraries) else ""
        if not installed:
            return False
        return commands.release(self._access, deadline).startswith(f"{installed}.")


@contextmanager
def _problems(what: str) -> Iterator[None]:
    """Turn what goes wrong in a query into `LookUpFailed`."""
    try:
        yield
    except OSError as error:
        raise LookUpFailed(what=what, problem=error.strerror or str(error)) from error
    except (WarmstartError, ValueError) as error:
        raise LookUpFailed(what=what, problem=str(error)) from error

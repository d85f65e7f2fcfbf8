"""Queries to slurmctld: one interface over Slurm's commands, and what wings have in place of them. Never on a hot path.

| asked by | what |
|---|---|
| a prolog that waits long for an image, on the job's first node | whether its job is over |
| maintenance | whether a job without a step daemon is over, and whether there is a node of a name |
| maintenance, a hook that compiles the policy, doctor | what slurmctld enforces, and which hooks it runs |
| wings | what jobs are, and which ones are pending |

A wing's `answers.py` is asked where it fits the running release of Slurm, and not repeated through a command if it
fails. Elsewhere `squeue` and `scontrol` are run, with formats that no text of a user is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from warmstart import wing
from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.slurm import commands
from warmstart.slurm.facts import Access, Configuration, JobFacts
from warmstart.slurm.pending import PendingJob

QUERY_S = 10.0
COMMANDS = "squeue"
_Answer = TypeVar("_Answer")


class LookUpFailed(ResourceError):
    """slurmctld could not be queried, or not in time, or its answer is not clear."""

    code = "look-up-failed"
    template = "cannot ask slurmctld about {what}: {problem}"
    hint = "is slurmctld slow or down? see whether squeue and scontrol answer here, as the same user"


class AnswersPart(Protocol):
    """`answers.py` of a wing. All but `fits` return None if it cannot answer here after all, and raise `OSError`."""

    NAME: str

    def fits(self, access: Access, deadline: Deadline) -> bool:
        """Return whether it may be asked about the Slurm that runs."""

    def jobs(self, access: Access, job_ids: list[int], deadline: Deadline) -> list[JobFacts] | None:
        """Return those of the jobs that slurmctld knows."""

    def pending(self, access: Access, deadline: Deadline) -> list[PendingJob] | None:
        """Return the jobs that wait and can start as they are, by priority."""

    def configuration(self, access: Access, deadline: Deadline) -> Configuration | None:
        """Return slurmctld's settings."""


class Slurmctld:
    """The running controller. Methods raise `LookUpFailed`."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._parts: list[AnswersPart] | None = None  # those that fit; None until the first query
        self._source = ""  # until the first query

    @property
    def source(self) -> str:
        """What answered the last query: a part's name, or `squeue`; "" before the first."""
        return self._source

    def job(self, job_id: int, deadline: Deadline) -> JobFacts | None:
        """Return a job; None if slurmctld does not know it any more."""
        with _problems(f"job {job_id}"):
            jobs = [job for job in self._jobs([job_id], deadline) if job.job_id == job_id]
            return jobs[0] if jobs else None

    def knows_node(self, node: str, deadline: Deadline) -> bool:
        """Return whether the cluster has a node of this name."""
        with _problems(f"node {node}"):
            return commands.knows_node(self._access, node, deadline)

    def pending(
        self, deadline: Deadline, by_commands: Callable[[Access, Deadline], list[PendingJob]]
    ) -> list[PendingJob]:
        """Return the jobs that wait and can start as they are, by priority, at most `slurm.pending.MOST`. One query.

        `by_commands` asks Slurm's commands, where no wing answers; it raises `ValueError` without a clear answer.
        """
        with _problems("pending jobs"):
            jobs = self._by_wings(deadline, lambda part: part.pending(self._access, deadline))
            return by_commands(self._access, deadline) if jobs is None else jobs

    def configuration(self, deadline: Deadline) -> Configuration:
        """Return settings that are in force, whatever slurm.conf says by now."""
        with _problems("its configuration"):
            answer = self._by_wings(deadline, lambda part: part.configuration(self._access, deadline))
            return commands.configuration(self._access, deadline) if answer is None else answer

    def _jobs(self, job_ids: list[int], deadline: Deadline) -> list[JobFacts]:
        jobs = self._by_wings(deadline, lambda part: part.jobs(self._access, job_ids, deadline))
        return commands.jobs(self._access, job_ids, deadline) if jobs is None else jobs

    def _by_wings(self, deadline: Deadline, query: Callable[[AnswersPart], _Answer | None]) -> _Answer | None:
        """Return a wing's answer; None if commands are to be asked. A part that cannot answer is not asked again."""
        if self._parts is None:
            found: list[AnswersPart] = [wing.load(module) for module in wing.with_part("answers")]
            self._parts = [part for part in found if part.fits(self._access, deadline)]
        while self._parts:
            self._source = self._parts[0].NAME
            if (answer := query(self._parts[0])) is not None:
                return answer
            del self._parts[0]
        self._source = COMMANDS
        return None


@contextmanager
def _problems(what: str) -> Iterator[None]:
    """Turn what goes wrong in a query into `LookUpFailed`."""
    try:
        yield
    except OSError as error:
        raise LookUpFailed(what=what, problem=error.strerror or str(error)) from error
    except (WarmstartError, ValueError) as error:
        raise LookUpFailed(what=what, problem=str(error)) from error

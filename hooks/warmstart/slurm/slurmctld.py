"""Queries to slurmctld: one interface over Slurm's commands, and what wings have in place of them. Never on a hot path.

| asked by | what |
|---|---|
| a prolog that waits long for an image, on the job's first node | whether its job is over |
| maintenance | whether a job without a step daemon is over, and whether there is a node of a name |
| maintenance, a hook that compiles the policy | what slurmctld enforces |
| `doctor`, `policy check` | its settings, and its partitions |
| wings | what jobs are |

A wing's `answers.py` is asked where it fits the running release of Slurm, and not repeated through a command if it
fails. Elsewhere `squeue` and `scontrol` are run, with formats that no text of a user is in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from warmstart import wing
from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.slurm import commands
from warmstart.slurm.facts import Access, JobFacts, Settings

QUERY_S = 10.0


class LookUpFailed(ResourceError):
    """slurmctld could not be queried, or not in time, or its answer is not clear."""

    code = "look-up-failed"
    template = "cannot ask slurmctld about {what}: {problem}"
    hint = "is slurmctld slow or down? see whether squeue and scontrol answer here, as the same user"


class Answers(Protocol):
    """What answers for slurmctld. Both queries raise `OSError` or `ValueError`."""

    NAME: str

    def job(self, access: Access, job_id: int, deadline: Deadline) -> JobFacts | None:
        """Return a job; None if slurmctld does not know it any more."""

    def enforced(self, access: Access, deadline: Deadline) -> list[str]:
        """Return AccountingStorageEnforce, lower case; [] for none."""


class AnswersPart(Answers, Protocol):
    """`answers.py` of a wing."""

    def fits(self, access: Access, deadline: Deadline) -> bool:
        """Return whether it can be asked about the Slurm that runs."""


class Slurmctld:
    """The running controller. Methods raise `LookUpFailed`."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._found: Answers | None = None  # until the first query

    @property
    def source(self) -> str:
        """What answers queries: a part's name, or `squeue`; "" before the first."""
        return self._found.NAME if self._found else ""

    def job(self, job_id: int, deadline: Deadline) -> JobFacts | None:
        """Return a job; None if slurmctld does not know it any more."""
        with _problems(f"job {job_id}"):
            return self._answers(deadline).job(self._access, job_id, deadline)

    def knows_node(self, node: str, deadline: Deadline) -> bool:
        """Return whether the cluster has a node of this name."""
        with _problems(f"node {node}"):
            return commands.knows_node(self._access, node, deadline)

    def enforced(self, deadline: Deadline) -> list[str]:
        """Return AccountingStorageEnforce, lower case, [] for none: what is in force, whatever slurm.conf says."""
        with _problems("what it enforces"):
            return self._answers(deadline).enforced(self._access, deadline)

    def settings(self, deadline: Deadline) -> Settings:
        """Return all settings that are in force, whatever slurm.conf says by now."""
        with _problems("its settings"):
            return commands.settings(self._access, deadline)

    def partitions(self, deadline: Deadline) -> dict[str, str]:
        """Return all partitions with their nodes, a host list."""
        with _problems("its partitions"):
            return commands.partitions(self._access, deadline)

    def _answers(self, deadline: Deadline) -> Answers:
        if self._found is None:
            parts: Iterator[AnswersPart] = (wing.load(module) for module in wing.with_part("answers"))
            self._found = next((part for part in parts if part.fits(self._access, deadline)), commands)
        return self._found


@contextmanager
def _problems(what: str) -> Iterator[None]:
    """Turn what goes wrong in a query into `LookUpFailed`."""
    try:
        yield
    except OSError as error:
        raise LookUpFailed(what=what, problem=error.strerror or str(error)) from error
    except (WarmstartError, ValueError) as error:
        raise LookUpFailed(what=what, problem=str(error)) from error

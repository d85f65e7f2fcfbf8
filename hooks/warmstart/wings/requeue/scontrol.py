"""What is asked of slurmctld: to requeue a job, and to put jobs' starts off. Runs as root, with scontrol."""

from __future__ import annotations

from warmstart.host.deadline import Deadline
from warmstart.slurm.commands import change
from warmstart.slurm.facts import Access

_ALREADY_PENDING = "Job is pending execution"


def requeue(access: Access, name: str, deadline: Deadline) -> str:
    """Requeue a job that scontrol knows by `name`; return "", or why not. Raises no `WarmstartError`.

    From a prolog that ends with 0 this is harmless to the node (seen with 22.05 and 25.11). For the bare id of an array
    all its tasks are requeued.
    """
    problem = change(access, ["requeue", name], deadline)
    return "" if _ALREADY_PENDING in problem else problem  # another hook of the job was faster


def put_off(access: Access, names: list[str], start: str, deadline: Deadline) -> str:
    """Set the StartTime of jobs with one call; return "", or what went wrong for one of them.

    Raises no `WarmstartError`.
    """
    return change(access, ["update", f"jobid={','.join(names)}", f"StartTime={start}"], deadline)

"""How a job ended, while its epilog runs: one question to the controller, only where the policy makes it matter.

The epilog's own environment does not tell: SLURM_JOB_EXIT_CODE is 0 for jobs that were cancelled or timed out (run and
seen on 22.05). So does JobState, which is COMPLETING for all of them until the last epilog has ended. What squeue's
exit code, reason and end time say of each end stands in docs/policy.md. They hold no text of the job's owner.
"""

from __future__ import annotations

import os

from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.process import run

_FIELDS = ("JobID", "State", "Reason", "exit_code", "EndTime")
_ENDED = ("COMPLETING", "COMPLETED")
_SUCCESS = "0"


def failure(scontrol: str, job_id: int, slurm_conf: str, deadline: Deadline) -> str:
    """Return why a job does not count as successful, "" where it does; without a plain answer it does not."""
    fields = ",".join(f"{field}:|" for field in _FIELDS)
    argv = [squeue(scontrol), "--noheader", "--states=all", f"--jobs={job_id}", f"--Format={fields}"]
    env = {"SLURM_CONF": slurm_conf} if slurm_conf else {}
    try:
        ended = run(argv, deadline=deadline, env=env)
    except WarmstartError as error:
        return f"not known: {error}"
    if ended.status != 0:
        return f"not known: squeue: {ended.complaint()}"
    return judged(ended.stdout.decode("utf-8", "replace"), job_id)


def squeue(scontrol: str) -> str:
    """Return the path of the program that is asked: it lies beside scontrol."""
    return os.path.join(os.path.dirname(scontrol), "squeue")


def judged(answer: str, job_id: int) -> str:
    """Return `failure` for squeue's answer, which may have lines of other tasks of the job's array."""
    rows = [line.split("|")[: len(_FIELDS)] for line in answer.splitlines()]
    found = [row for row in rows if row[0] == str(job_id) and len(row) == len(_FIELDS)]
    if len(found) != 1:
        return "not known: squeue does not tell"
    _, state, reason, status, until = found[0]
    if state not in _ENDED:
        return f"it is {state}"
    if (reason, status) != ("None", _SUCCESS):
        return f"it ended with status {status}, reason {reason}"
    return "" if until[:1].isdigit() else "it was requeued"

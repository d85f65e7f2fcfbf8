"""Which jobs are over: judged by the step daemons on this host and, where there is none, by the controller.

A daemon that runs proves that its job is here. None proves nothing: between two steps of an allocation there is no
daemon unless slurm.conf has PrologFlags=Contain. So the controller is asked, once for each job in question, and only
its plain word counts: a query that fails never means that there is no job (design, Slurm access).

The daemon's title is `slurmstepd: [7.batch]` (run and seen on 22.05; `setproctitle` in src/slurmd/slurmstepd).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.process import run

LOOKUP_SECONDS = 10.0
_TITLE = re.compile(rb"slurmstepd: \[(\d{1,10})[.+]")
_STATE = re.compile(r"\bJobState=([A-Z_]+)")
# Slurm's job states that are final; COMPLETING is not among them (reference: squeue(1), JOB STATE CODES).
_FINAL = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED"}
)


def with_daemons(proc: str = "/proc") -> frozenset[int]:
    """Return the jobs that have a step daemon on this host; only root's processes are believed."""
    found = set()
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        with suppress(OSError):
            if os.stat(f"{proc}/{name}").st_uid != 0:
                continue
            with open(f"{proc}/{name}/cmdline", "rb") as file:
                if match := _TITLE.match(file.read(100)):
                    found.add(int(match[1]))
    return frozenset(found)


def is_over(scontrol: str, job_id: int, slurm_conf: str) -> bool | None:
    """Ask the controller whether a job has ended or was forgotten; None where it does not say."""
    env = {"SLURM_CONF": slurm_conf} if slurm_conf else {}
    try:
        ended = run([scontrol, "-o", "show", "job", str(job_id)], deadline=after(LOOKUP_SECONDS), env=env)
    except WarmstartError:
        return None
    if ended.status != 0:
        return True if b"Invalid job id specified" in ended.stderr + ended.stdout else None
    states = _STATE.findall(ended.stdout.decode("utf-8", "replace"))
    return all(state in _FINAL for state in states) if states else None

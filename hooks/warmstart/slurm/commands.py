"""Slurm's commands, for what no environment tells: a job's QOS, its state, how it ended; and the reason of a drain.

Every call has a deadline. Never on a compute node's hot path: SchedMD asks prologs to leave the controller alone
(doc/html/prolog_epilog.shtml).

- QOS (slurmctld hooks, before Slurm 25.11): through pyslurm where a release for the running Slurm is installed, else
  through scontrol.
- State (maintenance): a running step daemon proves that its job is on this host; its title is `slurmstepd: [7.batch]`
  (seen on 22.05; `setproctitle` in src/slurmd/slurmstepd). No daemon proves nothing: without PrologFlags=Contain
  there is none between two steps. The controller is then asked once per job, and a query that fails never means "no
  job".
- Outcome (epilog, only where the policy makes it matter): the epilog's SLURM_JOB_EXIT_CODE is 0 for cancelled and
  timed out jobs, and JobState is COMPLETING until the last epilog has ended (seen on 22.05). docs/policy.md lists
  what squeue's exit code, reason and end time say of each ending. They hold no text of the job's owner.
- Drain reason (failures only): Slurm's own reason is always "Prolog error". slurmctld keeps the reason of a node that
  is already drained (`drain_nodes`, src/slurmctld/node_mgr.c). If the call fails, the exit status still drains the
  node.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import NamedTuple

from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.host.process import run
from warmstart.slurm import pyslurm_lookup
from warmstart.slurm.client import SlurmClient

_RELEASE = re.compile(r"(\d+\.\d+)\.\d")
_QOS = re.compile(r" QOS=(\S+)(?: WCKey=.*)?$", re.MULTILINE)
UNSET = ("N/A", "(null)")
LOOKUP_SECONDS = 10.0
_TITLE = re.compile(rb"slurmstepd: \[(\d{1,10})[.+]")
_STATE = re.compile(r"\bJobState=([A-Z_]+)")
# Slurm's job states that are final; COMPLETING is not among them (reference: squeue(1), JOB STATE CODES).
_FINAL = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED"}
)
_FIELDS = ("JobID", "State", "Reason", "exit_code", "EndTime")
_ENDED = ("COMPLETING", "COMPLETED")
_SUCCESS = "0"
DRAIN_SECONDS = 5.0
LONGEST_REASON = 200


class LookUpFailed(ResourceError):
    """The controller did not tell a job's QOS in time; rules on it grant the job nothing."""

    code = "look-up-failed"
    template = "the QOS of job {name} could not be had: {problem}"
    hint = "is slurmctld slow? raise slurmctld.deadline, or have Slurm 25.11, whose hooks know the QOS"


class QosQuery(NamedTuple):
    """One job, and the ways to ask for it."""

    job_id: int
    name: str  # for scontrol: 7, 7_3 of an array, 7+1 of a heterogeneous job
    scontrol: str
    slurm_conf: str  # "" where Slurm finds it by itself
    libraries: str  # a directory with pyslurm in it, if there is one
    identity: Identity  # whom to ask as


class Answer(NamedTuple):
    """A QOS, "" for a job without one, and who told it: `pyslurm` or `scontrol`."""

    qos: str
    source: str


def qos(asked: QosQuery, deadline: Deadline) -> Answer:
    """Return the job's QOS; `LookUpFailed` at the deadline, or when the answer is not beyond doubt."""
    try:
        told = _of_pyslurm(asked, deadline) if _fits(asked, deadline) else None
        if told is not None:
            return Answer(told, "pyslurm")
        return Answer(_of_scontrol(asked, deadline), "scontrol")
    except OSError as error:
        raise LookUpFailed(name=asked.name, problem=error.strerror or str(error)) from error
    except (WarmstartError, ValueError) as error:
        raise LookUpFailed(name=asked.name, problem=str(error)) from error


def parsed(text: str, job_id: int) -> str:
    """Return the QOS in `scontrol show job`'s answer for one job; `ValueError` when it is not beyond doubt.

    The text holds the user's own job name, comment, account, paths, any of them with newlines: a second `QOS=`
    anywhere in it could be the user's.
    """
    if not text.startswith(f"JobId={job_id} "):
        raise ValueError(f"scontrol does not answer about job {job_id}")
    found = _QOS.findall(text)
    if len(found) != 1 or text.count("QOS=") != 1:
        raise ValueError("scontrol's answer does not have exactly one QOS")
    return "" if found[0] in UNSET else str(found[0])


def _of_scontrol(asked: QosQuery, deadline: Deadline) -> str:
    ended = run(
        [asked.scontrol, "show", "job", asked.name],
        deadline=deadline,
        identity=asked.identity,
        env={"SLURM_CONF": asked.slurm_conf} if asked.slurm_conf else {},
    )
    if ended.status != 0:
        raise ValueError(f"scontrol: {ended.complaint()}")
    return parsed(ended.stdout.decode("utf-8", "replace"), asked.job_id)


def _of_pyslurm(asked: QosQuery, deadline: Deadline) -> str | None:
    with SlurmClient(asked.identity) as client:
        return client.qos_by_pyslurm(asked.libraries, asked.slurm_conf, asked.job_id, deadline)


def _fits(asked: QosQuery, deadline: Deadline) -> bool:
    """Tell whether there is a pyslurm of the running Slurm's release: with another one it may crash or lie."""
    if not os.path.isdir(asked.libraries):
        return False
    ours = pyslurm_lookup.release(asked.libraries)
    ended = run([asked.scontrol, "-V"], deadline=deadline, identity=asked.identity)
    running = _RELEASE.search(ended.stdout.decode("ascii", "replace"))
    return running is not None and running[1] == ours


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


def drain_node(scontrol: str, node: str, reason: str, slurm_conf: str) -> bool:
    """Drain `node` with our reason; return whether Slurm took it."""
    text = f"warmstart: {reason}"[:LONGEST_REASON]
    env = {"SLURM_CONF": slurm_conf} if slurm_conf else {}
    argv = [scontrol, "update", f"nodename={node}", "state=drain", f"reason={text}"]
    try:
        return run(argv, deadline=after(DRAIN_SECONDS), env=env).status == 0
    except WarmstartError:
        return False

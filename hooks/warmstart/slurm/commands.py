"""Look up a job's QOS, state and outcome, which a hook's environment does not have, and drain nodes.

Every call has a deadline. Not on the hot path of a compute node: SchedMD asks prologs not to call the controller
(doc/html/prolog_epilog.shtml).

- QOS (slurmctld hooks, before Slurm 25.11): through pyslurm where a release for the running Slurm is installed, else
  through scontrol.
- State (maintenance): a running step daemon proves that its job is on this host; its title is `slurmstepd: [7.batch]`
  (seen on 22.05; `setproctitle` in src/slurmd/slurmstepd). Anybody can give a process that title, so real uid and
  executable count, too (docs/threats.md, row 33). Its absence proves nothing, because without PrologFlags=Contain none
  runs between two steps. The controller is then queried once per job. A failed query never means "no such job".
- Outcome (epilog, only if the policy depends on it): the epilog's SLURM_JOB_EXIT_CODE is 0 for cancelled and timed
  out jobs, and JobState is COMPLETING until the last epilog has ended (seen on 22.05). docs/policy.md lists squeue's
  exit code, reason and end time for each way in which a job can end. These fields contain no text of the job's owner.
- Enforcement (maintenance, and once per change of the policy): AccountingStorageEnforce as slurmctld has it, for
  `policy.trust`.
- Drain reason (failures only): Slurm's own reason is always "Prolog error". slurmctld keeps the reason of a node that
  is already drained (`drain_nodes`, src/slurmctld/node_mgr.c). If the call fails, the exit status still drains the
  node.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import NamedTuple

from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.host.process import run
from warmstart.slurm import pyslurm_lookup
from warmstart.slurm.client import SlurmClient

_LOOKUP_S = 10.0
_DRAIN_S = 5.0
_LONGEST_REASON = 200
_RELEASE = re.compile(r"(\d+\.\d+)\.\d")
_QOS = re.compile(r" QOS=(\S+)(?: WCKey=.*)?$", re.MULTILINE)
_UNSET = ("N/A", "(null)")
_DAEMON = "slurmstepd"  # Debian's is slurmstepd-wlm
_TITLE = re.compile(rb"slurmstepd: \[(\d{1,10})[.+]")
_ENFORCED = re.compile(r"^AccountingStorageEnforce\s*=\s*([\w,]+)$", re.MULTILINE)
_STATE = re.compile(r"\bJobState=([A-Z_]+)")
# Slurm's job states that are final; COMPLETING is not among them (reference: squeue(1), JOB STATE CODES).
_FINAL = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED"}
)
_FIELDS = ("JobID", "State", "Reason", "exit_code", "EndTime")
_ENDED = ("COMPLETING", "COMPLETED")


class LookUpFailed(ResourceError):
    """A job's QOS could not be determined, or not in time; rules that match on it grant the job nothing."""

    code = "look-up-failed"
    template = "cannot look up the QOS of job {name}: {problem}"
    hint = "if slurmctld is slow, raise slurmctld.deadline; from Slurm 25.11 on its hooks get the QOS without a query"


class QosQuery(NamedTuple):
    """The job whose QOS is looked up, and the ways to look it up."""

    job_id: int
    name: str  # for scontrol: 7, 7_3 of an array, 7+1 of a heterogeneous job
    scontrol: str
    slurm_conf: str  # "" if Slurm finds it by itself
    libraries: str  # directory in which pyslurm may be installed
    identity: Identity  # that the queries run as


class Answer(NamedTuple):
    """A QOS, "" for a job without one, and its source: `pyslurm` or `scontrol`."""

    qos: str
    source: str


def qos(query: QosQuery, deadline: Deadline) -> Answer:
    """Return the job's QOS; `LookUpFailed` at the deadline, or if the answer is ambiguous."""
    try:
        found = _of_pyslurm(query, deadline) if _has_fitting_pyslurm(query, deadline) else None
        if found is not None:
            return Answer(found, "pyslurm")
        return Answer(_of_scontrol(query, deadline), "scontrol")
    except OSError as error:
        raise LookUpFailed(name=query.name, problem=error.strerror or str(error)) from error
    except (WarmstartError, ValueError) as error:
        raise LookUpFailed(name=query.name, problem=str(error)) from error


def parse_qos(text: str, job_id: int) -> str:
    """Return the QOS from the output of `scontrol show job` for one job; `ValueError` if it is ambiguous.

    The output contains text of the user's (job name, comment, account, paths), any of it with newlines. So a second
    `QOS=` anywhere could be the user's.
    """
    if not text.startswith(f"JobId={job_id} "):
        raise ValueError(f"scontrol's output is not about job {job_id}")
    found = _QOS.findall(text)
    if len(found) != 1 or text.count("QOS=") != 1:
        raise ValueError("scontrol's output does not have exactly one QOS")
    return "" if found[0] in _UNSET else str(found[0])


def _of_scontrol(query: QosQuery, deadline: Deadline) -> str:
    process = run(
        [query.scontrol, "show", "job", query.name],
        deadline=deadline,
        identity=query.identity,
        env=_environment(query.slurm_conf),
    )
    if process.status != 0:
        raise ValueError(f"scontrol: {process.complaint()}")
    return parse_qos(process.stdout.decode("utf-8", "replace"), query.job_id)


def _of_pyslurm(query: QosQuery, deadline: Deadline) -> str | None:
    with SlurmClient(query.identity) as client:
        return client.qos_by_pyslurm(query.libraries, query.slurm_conf, query.job_id, deadline)


def _has_fitting_pyslurm(query: QosQuery, deadline: Deadline) -> bool:
    """Return whether pyslurm is installed for the running release of Slurm: another may crash or return nonsense."""
    if not os.path.isdir(query.libraries):
        return False
    installed = pyslurm_lookup.release(query.libraries)
    process = run([query.scontrol, "-V"], deadline=deadline, identity=query.identity)
    running = _RELEASE.search(process.stdout.decode("ascii", "replace"))
    return running is not None and running[1] == installed


def with_daemons(proc: str = "/proc") -> frozenset[int]:
    """Return the ids of the jobs that have a step daemon on this host; only daemons that root started count."""
    found = set()
    for name in filter(str.isdigit, os.listdir(proc)):
        with suppress(OSError):
            with open(f"{proc}/{name}/cmdline", "rb") as file:
                match = _TITLE.match(file.read(100))
            if match and _is_step_daemon(f"{proc}/{name}"):
                found.add(int(match[1]))
    return frozenset(found)


def _is_step_daemon(process: str) -> bool:
    """Tell whether root runs a step daemon's program. A setuid program's owner is root, too, and users name files."""
    with open(f"{process}/status", "rb") as file:
        real_uid = re.search(rb"^Uid:\t(\d+)\t", file.read(), re.MULTILINE)
    program = os.path.basename(os.readlink(f"{process}/exe"))
    return (
        real_uid is not None
        and int(real_uid[1]) == 0
        and program.startswith(_DAEMON)
        and not os.stat(f"{process}/exe").st_mode & stat.S_ISUID
    )


def is_over(scontrol: str, job_id: int, slurm_conf: str) -> bool | None:
    """Return whether the controller reports a job as ended or unknown; None if there is no clear answer."""
    argv = [scontrol, "-o", "show", "job", str(job_id)]
    try:
        process = run(argv, deadline=after(_LOOKUP_S), env=_environment(slurm_conf))
    except WarmstartError:
        return None
    if process.status != 0:
        return True if b"Invalid job id specified" in process.stderr + process.stdout else None
    states = _STATE.findall(process.stdout.decode("utf-8", "replace"))
    return all(state in _FINAL for state in states) if states else None


def failure(scontrol: str, job_id: int, slurm_conf: str, deadline: Deadline) -> str:
    """Return why a job does not count as successful, "" if it does. Without a clear answer it does not."""
    fields = ",".join(f"{field}:|" for field in _FIELDS)
    argv = [squeue(scontrol), "--noheader", "--states=all", f"--jobs={job_id}", f"--Format={fields}"]
    try:
        process = run(argv, deadline=deadline, env=_environment(slurm_conf))
    except WarmstartError as error:
        return f"not known: {error}"
    if process.status != 0:
        return f"not known: squeue: {process.complaint()}"
    return parse_outcome(process.stdout.decode("utf-8", "replace"), job_id)


def squeue(scontrol: str) -> str:
    """Return the path of squeue, which is in the directory of scontrol."""
    return os.path.join(os.path.dirname(scontrol), "squeue")


def parse_outcome(answer: str, job_id: int) -> str:
    """Return the result of `failure` from squeue's output, which may have lines of other tasks of the job's array."""
    rows = [line.split("|")[: len(_FIELDS)] for line in answer.splitlines()]
    found = [row for row in rows if row[0] == str(job_id) and len(row) == len(_FIELDS)]
    if len(found) != 1:
        return "not known: squeue gives no clear answer"
    _, state, reason, status, until = found[0]
    if state not in _ENDED:
        return f"it is {state}"
    if (reason, status) != ("None", "0"):
        return f"it ended with status {status}, reason {reason}"
    return "" if until[:1].isdigit() else "it was requeued"


def enforced(scontrol: str, slurm_conf: str) -> list[str] | None:
    """Return AccountingStorageEnforce of slurmctld's running configuration; None without a clear answer."""
    try:
        process = run([scontrol, "show", "config"], deadline=after(_LOOKUP_S), env=_environment(slurm_conf))
    except (WarmstartError, OSError):
        return None
    found = _ENFORCED.findall(process.stdout.decode("utf-8", "replace"))
    if process.status != 0 or len(found) != 1:
        return None
    return [word for word in found[0].lower().split(",") if word != "none"]


def drain_node(scontrol: str, node: str, reason: str, slurm_conf: str) -> bool:
    """Drain `node` with a reason (cut at 200 characters); return whether scontrol succeeded."""
    text = f"warmstart: {reason}"[:_LONGEST_REASON]
    argv = [scontrol, "update", f"nodename={node}", "state=drain", f"reason={text}"]
    try:
        return run(argv, deadline=after(_DRAIN_S), env=_environment(slurm_conf)).status == 0
    except WarmstartError:
        return False


def _environment(slurm_conf: str) -> dict[str, str]:
    return {"SLURM_CONF": slurm_conf} if slurm_conf else {}

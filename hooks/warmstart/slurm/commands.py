"""Slurm's own programs: squeue and scontrol, which query and change jobs and nodes, and the step daemons.

Every call has a deadline. Not on the hot path of a compute node: SchedMD asks prologs not to call the controller
(doc/html/prolog_epilog.shtml). `slurm.slurmctld` is the interface to the queries.

- Jobs: squeue with fields that have no text of the job's owner, so nothing that a user writes can look like an answer.
- Step daemons: a running one proves that its job is on this host; its title is `slurmstepd: [7.batch]` (seen on 22.05;
  `setproctitle` in src/slurmd/slurmstepd). Anybody can give a process that title, so real uid and executable count, too
  (docs/threats.md, row 33). Its absence proves nothing, because without PrologFlags=Contain none runs between two
  steps. The controller is then queried once per job. A failed query never means "no such job".
- Outcome (epilog, only if the policy depends on it): the epilog's SLURM_JOB_EXIT_CODE is 0 for cancelled and timed out
  jobs, and JobState is COMPLETING until the last epilog has ended (seen on 22.05). tests/unit/slurm/test_commands.py
  has squeue's exit code, reason and end time for the ways in which a job can end.
- Drain reason (failures only): Slurm's own reason is "Prolog error" or "Epilog error". slurmctld keeps the reason of a
  node that is already drained (`drain_nodes`, src/slurmctld/node_mgr.c). If the call fails, the exit status still
  drains the node.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress

from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.process import CompletedProgram, run
from warmstart.slurm.facts import Access, JobFacts, Settings

NAME = "squeue"  # of what answers queries, in the audit
_DRAIN_S = 5.0
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_LONGEST_REASON = 200
_LONGEST_STATUS = 10  # digits
_UNSET = ("", "N/A", "(null)")
_DAEMON = "slurmstepd"  # Debian's is slurmstepd-wlm
_TITLE = re.compile(rb"slurmstepd: \[(\d{1,10})[.+]")
_ENFORCED = "AccountingStorageEnforce"
_SETTING = re.compile(r"^(\w+)(?:\[\d+\])?[ \t]*=[ \t]*(.*)$", re.MULTILINE)  # Prolog[1] since 24.05
_PARTITION = re.compile(r"^PartitionName=(\S+)(?:.* Nodes=(\S+))?", re.MULTILINE)
_UNKNOWN_JOB = b"Invalid job id specified"
JOB_FIELDS = ("JobID", "State", "QOS", "ArrayJobID", "ArrayTaskID", "EligibleTime")
_FIELDS = ("JobID", "State", "Reason", "exit_code", "EndTime")
_ENDED = ("COMPLETING", "COMPLETED")


def job(access: Access, job_id: int, deadline: Deadline) -> JobFacts | None:
    """Return a job; None if slurmctld does not know it any more. `ValueError` if squeue fails."""
    process = _squeue(access, job_id, JOB_FIELDS, deadline)
    if process.status != 0:
        if _UNKNOWN_JOB in process.stderr + process.stdout:
            return None
        raise ValueError(f"squeue: {process.complaint()}")
    return parse_job(process.stdout.decode("utf-8", "replace"), job_id)


def parse_job(text: str, job_id: int) -> JobFacts:
    """Return the job in squeue's output, which may have lines of other tasks of its array.

    `ValueError` if it does not have exactly one line of the job.
    """
    rows = [line.removesuffix("|").split("|") for line in text.splitlines()]
    own = [row for row in rows if len(row) == len(JOB_FIELDS) and row[0] == str(job_id)]
    if len(own) != 1:
        raise ValueError("squeue gives no clear answer")
    _, state, qos, array, task, eligible = own[0]
    return JobFacts(
        job_id=job_id,
        state=state,
        qos=_set(qos),
        array=f"{array}_{task.partition('%')[0]}" if _set(task) else "",  # %: how many may run at a time
        eligible=int(eligible) if eligible.isdigit() else 0,
    )


def _set(value: str) -> str:
    return "" if value in _UNSET else value


def enforced(access: Access, deadline: Deadline) -> list[str]:
    """Return AccountingStorageEnforce, lower case, [] for none. `ValueError` without a clear answer."""
    return [word.lower() for word in settings(access, deadline).words(_ENFORCED)]


def settings(access: Access, deadline: Deadline) -> Settings:
    """Return slurmctld's settings. `ValueError` if scontrol fails, or its answer is not clear."""
    process = _asked(access, [access.scontrol, "show", "config"], deadline)
    if process.status != 0:
        raise ValueError(f"scontrol: {process.complaint()}")
    return parse_settings(process.stdout.decode("utf-8", "replace"))


def parse_settings(text: str) -> Settings:
    """Return the settings in scontrol's output; `ValueError` if it is not clear."""
    values: dict[str, list[str]] = {}
    for key, value in _SETTING.findall(text):
        values.setdefault(key, []).extend([value.strip()] if _set(value.strip()) else [])
    if len(values.get(_ENFORCED, [])) != 1:
        raise ValueError(f"scontrol's output does not have exactly one {_ENFORCED}")
    return Settings(values)


def partitions(access: Access, deadline: Deadline) -> dict[str, str]:
    """Return all partitions with their nodes, a host list. `ValueError` if scontrol fails."""
    process = _asked(access, [access.scontrol, "--all", "--oneliner", "show", "partition"], deadline)
    if process.status != 0:
        raise ValueError(f"scontrol: {process.complaint()}")
    return {name: _set(nodes) for name, nodes in _PARTITION.findall(process.stdout.decode("utf-8", "replace"))}


def knows_node(access: Access, node: str, deadline: Deadline) -> bool:
    """Return whether slurmctld has a node of this name. `ValueError` if scontrol does not say clearly."""
    process = _asked(access, [access.scontrol, "show", "node", node], deadline)
    told = (process.stdout + process.stderr).decode("utf-8", "replace")
    if process.status == 0 and f"NodeName={node} " in told:
        return True
    if f"Node {node} not found" in told:
        return False
    raise ValueError(f"scontrol: {process.complaint()}")


def release(access: Access, deadline: Deadline) -> str:
    """Return the release of Slurm's commands (`25.11.2`), "" if scontrol, which needs slurm.conf, tells none."""
    process = _asked(access, [access.scontrol, "-V"], deadline)
    match = _RELEASE.search(process.stdout.decode("ascii", "replace"))
    return match[0] if match else ""


def with_daemons(proc: str = "/proc") -> frozenset[int]:
    """Return the ids of the jobs that have a step daemon on this host; only daemons that root started count."""
    ids = set()
    for name in filter(str.isdigit, os.listdir(proc)):
        with suppress(OSError):
            ids.add(job_of_daemon(f"{proc}/{name}"))
    return frozenset(id_ for id_ in ids if id_ is not None)


def job_of_daemon(process: str) -> int | None:
    """Return whose step daemon a process is, by its directory in proc(5); None if it is none. Raises `OSError`."""
    with open(f"{process}/cmdline", "rb") as file:
        match = _TITLE.match(file.read(100))
    return int(match[1]) if match and _is_step_daemon(process) else None


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


def failure(scontrol: str, job_id: int, slurm_conf: str, deadline: Deadline) -> str:
    """Return why a job does not count as successful, "" if it does. Without a clear answer it does not."""
    try:
        process = _squeue(Access(scontrol, slurm_conf), job_id, _FIELDS, deadline)
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
    own = [row for row in rows if row[0] == str(job_id) and len(row) == len(_FIELDS)]
    if len(own) != 1:
        return "not known: squeue gives no clear answer"
    _, state, reason, status, until = own[0]
    if state not in _ENDED:
        return f"it is {state}"
    code = _exit_code(status)
    if (reason, code) != ("None", "0:0"):
        return f"it ended with exit code {code}, reason {reason}"
    return "" if until[:1].isdigit() else "it was requeued"


def _exit_code(status: str) -> str:
    """Return CODE:SIGNAL, as squeue prints it since 23.02. 22.05 prints a status as of wait(2)."""
    if status.isdecimal() and len(status) <= _LONGEST_STATUS:
        return f"{int(status) >> 8}:{int(status) & 0x7F}"
    return status


def drain_node(scontrol: str, node: str, reason: str, slurm_conf: str) -> bool:
    """Drain `node` with a reason (cut at 200 characters); return whether scontrol succeeded."""
    text = f"warmstart: {reason}"[:_LONGEST_REASON]
    arguments = ["update", f"nodename={node}", "state=drain", f"reason={text}"]
    return not change(Access(scontrol, slurm_conf), arguments, after(_DRAIN_S))


def change(access: Access, arguments: list[str], deadline: Deadline) -> str:
    """Have scontrol change something; return "", or what went wrong. Raises no `WarmstartError`."""
    try:
        process = _asked(access, [access.scontrol, *arguments], deadline)
    except (WarmstartError, OSError) as error:  # also a missing program: never this node's fault
        return str(error)
    return "" if process.status == 0 else f"scontrol: {process.complaint()}"


def _squeue(access: Access, job_id: int, fields: tuple[str, ...], deadline: Deadline) -> CompletedProgram:
    """Query a job in all states. Each line of the output has the fields, each followed by `|`; times are in seconds."""
    argv = [squeue(access.scontrol), "--noheader", "--states=all", f"--jobs={job_id}"]
    argv.append("--Format=" + ",".join(f"{field}:|" for field in fields))
    return _asked(access, argv, deadline)


def _asked(access: Access, argv: list[str], deadline: Deadline) -> CompletedProgram:
    """Run one of Slurm's programs to its end, with times in seconds."""
    env = {"SLURM_TIME_FORMAT": "%s", **({"SLURM_CONF": access.slurm_conf} if access.slurm_conf else {})}
    return run(argv, deadline=deadline, identity=access.identity, env=env)

"""The one question to slurmctld: a job's QOS, where no environment tells it (Slurm before 25.11) and a rule needs it.

Through pyslurm where one of the running Slurm's release is installed beside warmstart, else through scontrol; one
call, with a deadline. Never on a compute node: `import pyslurm` initialises libslurm, and SchedMD asks prologs to
leave the controller alone (doc/html/prolog_epilog.shtml).
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.host.process import run
from warmstart.slurm import pyslurm_lookup
from warmstart.slurm.client import SlurmClient

_RELEASE = re.compile(r"(\d+\.\d+)\.\d")
_QOS = re.compile(r" QOS=(\S+)(?: WCKey=.*)?$", re.MULTILINE)
UNSET = ("N/A", "(null)")


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

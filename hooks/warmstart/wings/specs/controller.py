"""Create, publish and remove job specs in slurmctld's hooks. Runs as SlurmUser on the controller.

Reads and writes no file of root's. PrologSlurmctld's environment is `job_common_env_vars` in Slurm's
src/slurmctld/job_mgr.c: it has job name and array ids, and the QOS from 25.11 on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

from warmstart.host.files import replace_file, unlink_if_there
from warmstart.job import Job
from warmstart.wings.specs.stored import Spec, opened_directory

_LONGEST_TEXT = 4096  # of a job name or comment; slurmctld itself caps comments at 1024


def spec_of(job: Job, environ: Mapping[str, str]) -> Spec:
    """Return the spec of a job from the environment of slurmctld's hook."""
    return Spec(
        cluster=job.cluster,
        job_id=job.id,
        uid=job.uid,
        restarts=job.restarts,
        written=time.time(),
        job_name=_bounded(environ.get("SLURM_JOB_NAME")),
        array=array_task(environ),
        comment=_bounded(job.comment),
        qos=_bounded(job.qos),
    )


def array_task(environ: Mapping[str, str]) -> str:
    """Return `JOBID_TASKID`, or "" for a job that is not in an array."""
    return _pair(environ, "SLURM_ARRAY_JOB_ID", "_", "SLURM_ARRAY_TASK_ID")


def publish(path: str, text: str) -> None:
    """Write a spec file atomically. Raises `OSError`."""
    directory, name = os.path.split(path)
    with opened_directory(directory, os.geteuid()) as folder:
        # Not synced: if a power failure of the file server loses a spec, no job fails, and rules on it grant nothing.
        replace_file(folder, name, text.encode(), 0o644, durable=False)


def remove(path: str) -> bool:
    """Remove a spec, and temporary files of killed hooks of the same job; return whether there was a spec."""
    directory, name = os.path.split(path)
    with opened_directory(directory, os.geteuid()) as folder:
        for left in os.listdir(folder):
            if left.startswith(f".{name}.") and left.endswith(".tmp"):
                unlink_if_there(left, folder)
        return unlink_if_there(name, folder)


def _bounded(text: str | None) -> str | None:
    """Return the text, or None if it is too long: a truncated text could match globs that the whole does not."""
    return text if text is None or len(json.dumps(text)) <= _LONGEST_TEXT else None


def _pair(environ: Mapping[str, str], first: str, between: str, second: str) -> str:
    pair = environ.get(first, ""), environ.get(second, "")
    plain = all(number.isascii() and number.isdigit() and len(number) <= 10 for number in pair)
    return between.join(pair) if plain else ""

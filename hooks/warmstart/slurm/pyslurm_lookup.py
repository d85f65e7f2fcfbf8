"""Look up a job's QOS through pyslurm. The only module that imports it. Runs as SlurmUser in a child of its own.

Names and types as in pyslurm 25.11.2 (pyslurm/core/job/job.pyx): `Job.load(job_id: int) -> Job`, `Job.id: int`,
`Job.qos: str | None`, `RPCError(Exception)`; importing the package calls slurm_init(), which reads SLURM_CONF.
`tests/integration/test_pyslurm_contract.py` checks them against the released source.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import metadata


def release(libraries: str) -> str:
    """Return the Slurm release (`25.11`) that the pyslurm in the directory `libraries` is built for; "" without one."""
    for found in metadata.distributions(name="pyslurm", path=[libraries]):
        return ".".join(found.version.split(".")[:2])
    return ""


def qos(libraries: str, slurm_conf: str, job_id: int) -> str | None:
    """Return the job's QOS, "" for none; None if pyslurm cannot be loaded. Raises `OSError` with Slurm's message."""
    sys.path.append(libraries)
    if slurm_conf:
        os.environ["SLURM_CONF"] = slurm_conf
    try:
        import pyslurm  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:  # libslurm is missing, or of another release
        return None
    try:
        job = pyslurm.Job.load(job_id)
    except pyslurm.RPCError as error:
        raise OSError(errno.EIO, str(error)) from error
    # For an array's own id slurmctld describes all tasks, and pyslurm returns the first of them.
    if job.id != job_id:
        raise OSError(errno.ESRCH, f"slurmctld answered about job {job.id}")
    return str(job.qos or "")

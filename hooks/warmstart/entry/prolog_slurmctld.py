"""Slurm's PrologSlurmctld: write the job's spec, the attributes that slurmd does not pass to a prolog.

Runs as SlurmUser and always ends with 0. Slurm starts no prolog of the job before it has ended (slurm.conf(5),
PrologSlurmctld).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from warmstart.audit import events
from warmstart.entry.slurmctld import ControllerRun, run_hook
from warmstart.slurm import controller

if TYPE_CHECKING:
    from warmstart.slurm import commands


def main(prefix: str) -> int:
    """Run the hook for the job in the environment; always 0."""
    return run_hook("prolog-slurmctld", prefix, _write)


def _write(run: ControllerRun) -> None:
    started = time.monotonic()
    written = controller.spec_of(run.job, os.environ)
    source = "nobody" if written.qos is None else "slurm"
    # Publish before the look-up: if that times out or this process is killed, nodes have everything but the QOS.
    run.slurm.publish_spec(run.path, written, run.deadline)
    if written.qos is None and "qos" in run.keys.attributes:
        from warmstart.slurm import commands

        try:
            answer = commands.qos(_qos_query(run), run.deadline)
        except commands.LookUpFailed as error:
            run.audit.emit(events.SPEC_FAILED, error=error.as_audit())
        else:
            source = answer.source
            run.slurm.publish_spec(run.path, written._replace(qos=answer.qos), run.deadline)
    took = round((time.monotonic() - started) * 1000, 3)
    run.audit.emit(events.SPEC_WRITTEN, path=run.path, qos=source, duration_ms=took)


def _qos_query(run: ControllerRun) -> commands.QosQuery:
    from warmstart.slurm.commands import QosQuery

    return QosQuery(
        job_id=run.job.id,
        name=controller.name_for_scontrol(run.job, os.environ),
        scontrol=run.policy.paths.scontrol,
        slurm_conf=run.keys.conf,
        libraries=run.pyslurm,
        identity=run.keys.user,
    )

"""Slurm's PrologSlurmctld: write the job's spec, the attributes that slurmd does not pass to a prolog.

Runs as SlurmUser and always ends with 0. Slurm starts no prolog of the job before it has ended (slurm.conf(5),
PrologSlurmctld).
"""

from __future__ import annotations

import os

from warmstart.wings.specs import client, controller
from warmstart.wings.specs.frame import ControllerRun, run_hook


def main(prefix: str) -> int:
    """Run the hook for the job in the environment; always 0."""
    return run_hook("prolog-slurmctld", prefix, _write)


def _write(run: ControllerRun) -> None:
    written = controller.spec_of(run.job, os.environ)
    source = "nobody" if written.qos is None else "slurm"
    # Publish before the look-up: if that times out or this process is killed, nodes have everything but the QOS.
    client.publish_spec(run.slurm, run.path, written, run.deadline)
    if written.qos is None and "qos" in run.policy.unseen:
        from warmstart.slurm.slurmctld import LookUpFailed

        try:
            source, qos = _qos(run)
        except LookUpFailed as error:
            run.audit.failed(error, "spec")
        else:
            client.publish_spec(run.slurm, run.path, written._replace(qos=qos), run.deadline)
    run.audit.say(spec=run.path, qos=source)


def _qos(run: ControllerRun) -> tuple[str, str]:
    """Return what slurmctld was asked through, and the job's QOS. Raises `LookUpFailed`."""
    from warmstart.slurm.facts import Access
    from warmstart.slurm.slurmctld import LookUpFailed, Slurmctld

    access = Access(run.policy.paths.scontrol, run.keys.conf or "", run.libraries, run.keys.user)
    slurmctld = Slurmctld(access)
    job = slurmctld.job(run.job.id, run.deadline)
    if job is None:
        raise LookUpFailed(what=f"job {run.job.id}", problem="it has gone")
    return slurmctld.source, job.qos

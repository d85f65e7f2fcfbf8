"""The wing's events (docs/wings/requeue.md)."""

from __future__ import annotations

from warmstart.audit.events import Event

JOB_REQUEUED = Event("job.requeued")
JOB_NOT_REQUEUED = Event("job.not-requeued")
REMARKS = {
    JOB_REQUEUED: "the job went back into Slurm's queue",
    JOB_NOT_REQUEUED: "the job could not go back into Slurm's queue",
}

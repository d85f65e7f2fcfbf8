"""job_container's CloneNSScript: show the job its cache at the constant path, in the namespace that Slurm made for it.

Slurm 24.11 and later run it as root after the prolog and before anything of the job, with the namespace in SLURM_NS
(reference: job_container.conf(5)). All steps of the job are in that namespace, and so are sessions that
pam_slurm_adopt brings in. The status is always 0, since any other fails the job: if the mount fails, the task prolog
does not find the cache there, and the job gets the cache's own path.
"""

from __future__ import annotations

import os

from warmstart.audit import events
from warmstart.entry.hook import Hook, run_hook
from warmstart.errors import ResourceError, StoreError
from warmstart.host.client import show_in_namespace
from warmstart.host.deadline import after

NAME = "job-container"
SECONDS = 5.0  # CloneNSScript_Wait is 10 by default


class ConstantPathFailed(ResourceError):
    """The cache could not be mounted at the constant path in the job's namespace."""

    code = "constant-path-failed"
    template = "no cache at {path} in the job's namespace: {problem}"
    hint = "is the path below a directory of job_container's Dirs, or can somebody but root change a directory above?"


def main(prefix: str) -> int:
    """Run the hook for the job that the environment describes; always 0."""
    run_hook(NAME, prefix, _show)
    return 0


def _show(hook: Hook) -> None:
    record, namespace = hook.earlier_record(), os.environ.get("SLURM_NS")
    if hook.policy.constant_path != "namespace" or namespace is None:
        return
    if record is None or record.uid != hook.job.uid or not record.cache:
        return  # nothing for this job
    target = hook.policy.paths.cache
    try:
        show_in_namespace(namespace, record.run_directory, "cache", record.uid, target, after(SECONDS))
    except (OSError, StoreError) as error:  # `WorkerSilent` is a `StoreError`, whatever the process works on
        problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
        failure = ConstantPathFailed(path=target, problem=problem)
        hook.audit.emit(events.STEP_FAILED, step=NAME, error=failure.as_audit())

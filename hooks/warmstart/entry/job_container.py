"""job_container's CloneNSScript: show the job what its run has for it, in the mount namespace that Slurm made.

Slurm 24.11 and later run it as root after the prolog and before any process of the job, with the namespace in SLURM_NS
(job_container.conf(5)). All steps of the job enter that namespace, and so do sessions adopted by pam_slurm_adopt.
The status is always 0, because any other fails the job. If its mount fails, the task prolog does not find the cache
there and gives the job the cache's own path; at other paths the job reads what is there.
"""

from __future__ import annotations

import os

from warmstart.entry.hook import OK, Hook, run_hook
from warmstart.errors import StoreError
from warmstart.host.client import show_in_namespace
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.paths import NOTHING
from warmstart.run.shown import NotShown, shown_by

NAME = "job-container"
SECONDS = 5.0  # CloneNSScript_Wait is 10 by default


def main(prefix: str) -> int:
    """Run the hook for the job in the environment; always 0."""
    run_hook(NAME, prefix, _show)
    return 0


def _show(hook: Hook) -> str:
    """Return the outcome."""
    run, namespace = hook.earlier_run(), os.environ.get("SLURM_NS")
    if hook.policy.constant_path != "namespace" or namespace is None:
        return OK
    if run is None or run.uid != hook.job.uid or not run.own.path:
        return OK  # the job has no workspace on this node
    owner, targets = Identity(run.user, run.uid, run.gid), [run.directory]
    try:
        shown = [item for item in shown_by(run.directory) if item.target != NOTHING]
        targets = [item.target for item in shown]
        problems = show_in_namespace(namespace, run.directory, owner, shown, after(SECONDS))
    except (OSError, StoreError) as error:  # a worker that misses its deadline raises `WorkerSilent`, a `StoreError`
        problems = dict.fromkeys(targets, (error.strerror if isinstance(error, OSError) else None) or str(error))
    for path, problem in problems.items():
        failure = NotShown(what=f"at {path} in the job's namespace", problem=problem)
        hook.audit.failed(failure, NAME)
    return OK

"""job_container's CloneNSScript: show the job its cache and its tree, in the mount namespace that Slurm made.

Slurm 24.11 and later run it as root after the prolog and before any process of the job, with the namespace in SLURM_NS
(job_container.conf(5)). All steps of the job enter that namespace, and so do sessions adopted by pam_slurm_adopt.
The status is always 0, because any other fails the job. If a mount fails, the task prolog does not find the cache
there and gives the job the cache's own path; the job reads the tree itself.
"""

from __future__ import annotations

import os

from warmstart.audit import events
from warmstart.entry.hook import Hook, run_hook
from warmstart.errors import ResourceError, StoreError
from warmstart.host.client import show_in_namespace
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.paths import TREE
from warmstart.trees import shown
from warmstart.trees.current import TreeUnusable

NAME = "job-container"
SECONDS = 5.0  # CloneNSScript_Wait is 10 by default


class ConstantPathFailed(ResourceError):
    """The cache could not be mounted at the constant path in the job's namespace."""

    code = "constant-path-failed"
    template = "cannot mount the cache at {path} in the job's namespace: {problem}"
    hint = "put paths.cache outside of job_container's Dirs, below directories that only root can change"


def main(prefix: str) -> int:
    """Run the hook for the job in the environment; always 0."""
    run_hook(NAME, prefix, _show)
    return 0


def _show(hook: Hook) -> None:
    record, namespace = hook.earlier_record(), os.environ.get("SLURM_NS")
    if hook.policy.constant_path != "namespace" or namespace is None:
        return
    if record is None or record.uid != hook.job.uid or not record.cache:
        return  # the job has no workspace on this node
    owner, targets = Identity(record.user, record.uid, record.gid), {"cache": hook.policy.paths.cache}
    try:
        if tree := shown.path_of(record.run_directory):
            targets[TREE] = tree
        problems = show_in_namespace(namespace, record.run_directory, owner, targets, after(SECONDS))
    except (OSError, StoreError) as error:  # a worker that misses its deadline raises `WorkerSilent`, a `StoreError`
        problems = dict.fromkeys(targets, (error.strerror if isinstance(error, OSError) else None) or str(error))
    for name, problem in problems.items():
        failure = (
            TreeUnusable(tree=targets[name], problem=f"it cannot be mounted: {problem}")
            if name == TREE
            else ConstantPathFailed(path=targets[name], problem=problem)
        )
        hook.audit.emit(events.STEP_FAILED, step=NAME, error=failure.as_audit())

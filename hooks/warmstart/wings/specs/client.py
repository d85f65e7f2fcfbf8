"""Client for work that runs as SlurmUser on the controller, job spec files, and for queries through pyslurm.

Each operation runs in a process of its own: the shared file system may hang, and libslurm cannot be interrupted. Root
queries as itself.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker, WorkerBug
from warmstart.slurm.facts import Access
from warmstart.wings.specs import controller
from warmstart.wings.specs.stored import Spec, SpecUnusable, as_json

P = ParamSpec("P")
R = TypeVar("R")


def publish_spec(user: Identity, path: str, spec: Spec, deadline: Deadline) -> None:
    """Write a job's spec to `path` atomically, as SlurmUser. Raises `SpecUnusable` or `WorkerSilent`."""
    _as_user(user, path, deadline, controller.publish, path, as_json(spec))


def remove_spec(user: Identity, path: str, deadline: Deadline) -> bool:
    """Remove a job's spec, as SlurmUser; return whether there was one. Raises `SpecUnusable` or `WorkerSilent`."""
    return _as_user(user, path, deadline, controller.remove, path)


def _as_user(
    user: Identity, path: str, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    try:
        return Worker(user, "the job's spec").run(deadline, function, *args, **kwargs)
    except OSError as error:
        raise SpecUnusable(path=path, problem=error.strerror or "unwritable") from error


def ask_pyslurm(
    identity: Identity,
    access: Access,
    deadline: Deadline,
    function: Callable[Concatenate[str, str, P], R],
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Run a query of `pyslurm_lookup` in a child of its own, because libslurm may crash; it gets `access`.

    Raises `OSError` if Slurm or pyslurm fails, and `WorkerSilent`.
    """
    try:
        return Worker(identity, "pyslurm").run(deadline, function, access.libraries, access.slurm_conf, *args, **kwargs)
    except WorkerBug as error:
        raise OSError(errno.EIO, str(error)) from error

"""Client for work that runs as SlurmUser on the controller, job spec files, and for queries through pyslurm.

Each of the two runs in a process of its own: the shared file system may hang, and libslurm cannot be interrupted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker, WorkerBug
from warmstart.slurm import controller
from warmstart.slurm.facts import Access, Configuration, JobFacts
from warmstart.slurm.pending import PendingJob
from warmstart.slurm.spec import Spec, SpecUnusable, as_json

ROOMS = ("warmstart.slurm.controller:", "warmstart.slurm.pyslurm_lookup:")

P = ParamSpec("P")
R = TypeVar("R")


class SlurmClient:
    """Operations that run as SlurmUser, queries also as root; `close` ends the worker that handles specs."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._specs = Worker(identity, "the job's spec", rooms=ROOMS)

    def __enter__(self) -> SlurmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker."""
        self._specs.close()

    def publish_spec(self, path: str, spec: Spec, deadline: Deadline) -> None:
        """Write a job's spec to `path` atomically. Raises `SpecUnusable` or `WorkerSilent`."""
        try:
            self._specs.run(deadline, controller.publish, path, as_json(spec))
        except OSError as error:
            raise SpecUnusable(path=path, problem=error.strerror or "unwritable") from error

    def remove_spec(self, path: str, deadline: Deadline) -> bool:
        """Remove a job's spec; return whether there was one. Raises `SpecUnusable` or `WorkerSilent`."""
        try:
            return self._specs.run(deadline, controller.remove, path)
        except OSError as error:
            raise SpecUnusable(path=path, problem=error.strerror or "unwritable") from error

    def jobs_by_pyslurm(self, access: Access, job_ids: list[int], deadline: Deadline) -> list[JobFacts] | None:
        """Return the jobs that slurmctld knows; None if pyslurm cannot be loaded.

        Raises `OSError` if Slurm or pyslurm fails, and `WorkerSilent`.
        """
        from warmstart.slurm import pyslurm_lookup

        return self._in_a_child(deadline, pyslurm_lookup.jobs, access.libraries, access.slurm_conf, job_ids)

    def pending_by_pyslurm(self, access: Access, deadline: Deadline) -> list[PendingJob] | None:
        """Return the pending jobs, by priority. Raises as `jobs_by_pyslurm`."""
        from warmstart.slurm import pyslurm_lookup

        return self._in_a_child(deadline, pyslurm_lookup.pending, access.libraries, access.slurm_conf)

    def configuration_by_pyslurm(self, access: Access, deadline: Deadline) -> Configuration | None:
        """Return slurmctld's settings; None if pyslurm cannot be loaded. Raises as `jobs_by_pyslurm`."""
        from warmstart.slurm import pyslurm_lookup

        return self._in_a_child(deadline, pyslurm_lookup.configuration, access.libraries, access.slurm_conf)

    def _in_a_child(self, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a query in a child of its own, because libslurm may crash."""
        with Worker(self._identity, "pyslurm", rooms=ROOMS) as worker:
            try:
                return worker.run(deadline, function, *args, **kwargs)
            except WorkerBug as error:
                raise OSError(errno.EIO, str(error)) from error

"""What runs as SlurmUser on the controller: job specs on the shared file system, and questions through pyslurm.

Each has a process of its own: the file system may hang, and a call of libslurm can't be interrupted.
"""

from __future__ import annotations

import errno

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker, WorkerBug
from warmstart.slurm import controller
from warmstart.slurm.spec import Spec, SpecUnusable, as_json


class SlurmClient:
    """Operations that run as SlurmUser; `close` ends the process that handles specs."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._specs = Worker(identity)

    def __enter__(self) -> SlurmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._specs.close()

    def publish_spec(self, path: str, spec: Spec, deadline: Deadline) -> None:
        """Put a job's spec in its place, whole or not at all; `SpecUnusable`, `WorkerSilent`."""
        try:
            self._specs.run(deadline, controller.publish, path, as_json(spec))
        except OSError as error:
            raise SpecUnusable(path=path, problem=error.strerror or "unwritable") from error

    def remove_spec(self, path: str, deadline: Deadline) -> bool:
        """Remove a job's spec; return whether there was one. `SpecUnusable`, `WorkerSilent`."""
        try:
            return self._specs.run(deadline, controller.remove, path)
        except OSError as error:
            raise SpecUnusable(path=path, problem=error.strerror or "unwritable") from error

    def qos_by_pyslurm(self, libraries: str, slurm_conf: str, job_id: int, deadline: Deadline) -> str | None:
        """Return the job's QOS, "" for none; None if the pyslurm in the directory `libraries` can't be loaded.

        In a child of its own, which libslurm may crash. `OSError` if Slurm or pyslurm fails, `WorkerSilent`.
        """
        from warmstart.slurm import pyslurm_lookup

        with Worker(self._identity) as worker:
            try:
                return worker.run(deadline, pyslurm_lookup.qos, libraries, slurm_conf, job_id)
            except WorkerBug as error:
                raise OSError(errno.EIO, str(error)) from error

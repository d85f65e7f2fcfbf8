"""The image of a job's step that no prolog knew: what wings share that provide something for it. Runs as root."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from warmstart.errors import ResourceError
from warmstart.host.deadline import Deadline
from warmstart.run import state
from warmstart.run.state import Run
from warmstart.steps.contract import Context

LOCK_S = 5.0


class StepHasNoCaches(ResourceError):
    """A step has no caches for its image: the job's run is over, another step makes it, the disk refuses."""

    code = "step-has-no-caches"
    template = "{problem}"
    hint = "read the reason; tools in this container keep what they compile where they do without warmstart"


class StepImage(NamedTuple):
    """An image that a step runs in."""

    reference: str  # canonical
    digest: str
    path: str  # of its squashfs
    nodes: str = ""  # the step's, as a Slurm hostlist; a user says so
    private: str = ""  # the name of the store of private images that it comes from


class StepImagePart(Protocol):
    """`step_image.py` of a wing: what it has for a step's image besides caches."""

    def provide(self, context: Context, image: StepImage, namespaces: list[int], deadline: Deadline) -> bool:
        """Provide it by the deadline, or audit why not; return whether it is still on its way.

        `context` has the run as the step found it. `namespaces` are open mount namespaces of the job's that
        must see it.
        """


@contextmanager
def locked_run(context: Context) -> Iterator[Run]:
    """Hold the job's lock for a `with`; yield the run as it is now. Raises `StepHasNoCaches` or `JobBusy`."""
    job_id = context.run.job_id
    with state.job_lock(context.paths.state, job_id, context.deadline.within(LOCK_S)):
        run = state.load(context.paths.state, job_id)
        if run is None or run.run_id != context.run.run_id or not run.own.path:
            raise StepHasNoCaches(problem="the job's run on this node is over, or has no caches")
        yield run

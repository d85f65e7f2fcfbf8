"""Step `ready-root`: show the job its image, unpacked, for containers to start from. Runs as root.

It comes after the step that waits for the unpacking (`steps.unpack`). Where the tree is not there by then, containers
start as without this wing.
"""

from __future__ import annotations

from warmstart import plan
from warmstart.errors import WarmstartError
from warmstart.images.reference import Reference
from warmstart.job import Job
from warmstart.lean import NamedTuple, partial
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant
from warmstart.request import Request
from warmstart.run.state import CLAIMED
from warmstart.runner import Step
from warmstart.steps.contract import Context, Outcome
from warmstart.wings.ready_roots.settings import NAME

VARIABLE = "WARMSTART_ROOTFS"
TAKING_S = 2.0  # while trees are evicted


class Options(NamedTuple):
    """Images of the job that are private, each with the name of its store."""

    private: tuple[tuple[Reference, str], ...]


def planned(policy: Policy, job: Job, grant: Grant, requested: Request) -> Step | None:
    """Return the step, for a job that has an image."""
    images = plan.images(policy, grant, requested)
    if not images:
        return None
    options = Options(plan.private_images(policy, job, images))
    return Step(NAME, partial(run, options=options), optional=True)


def run(context: Context, options: Options) -> Outcome:
    """Show the job the tree of its first image. Raises `NotShown`, `StoreError` or `ResourceError`."""
    run = context.run
    if not (run.own.path and run.images) or run.own.image.startswith(CLAIMED):
        return Outcome()
    from warmstart.images.unpacked import shelf_of, take
    from warmstart.step_image import StepImage
    from warmstart.wings.ready_roots import clones

    name, path = next(iter(run.images.items()))
    private = next((store for reference, store in options.private if reference.canonical() == name), "")
    image = StepImage(name, run.own.image, path, private=private)
    try:
        clones.prepare(context)
        shelf, key = shelf_of(context.policy, run.node), clones.key_of(context.policy, image)
        tree = take(shelf, key, context.paths, run, context.deadline.within(TAKING_S))
        given = clones.give(context, image, [], tree) if tree else clones.Given("", clones.NOT_UNPACKED)
    except (OSError, WarmstartError) as error:
        raise clones.failure(image, error) from error
    clones.tell(context, image, given)
    if given.reason:
        return Outcome()
    variables = {VARIABLE: f"{run.directory}/{given.source}"}
    return Outcome(environment=variables)

"""Step `ready-root`: show the job its image, unpacked, for containers to start from. Runs as root.

It comes after the image's import, and waits for the unpacking as long as the policy says: that takes the place of
pyxis's own. Where it does not come in time, or this node cannot, containers start as without this wing. Only the job's
first image is waited for.
"""

from __future__ import annotations

import time

from warmstart import plan
from warmstart.errors import WarmstartError
from warmstart.images.reference import Reference
from warmstart.job import Job
from warmstart.lean import NamedTuple, partial
from warmstart.policy.compiled import Policy
from warmstart.policy.match import Grant
from warmstart.record import CLAIMED
from warmstart.request import Request
from warmstart.runner import Step
from warmstart.steps.contract import Context, Outcome

NAME = "ready-root"
VARIABLE = "WARMSTART_ROOTFS"
MARGIN_S = 5.0  # of the prolog's budget, for what comes after
TOLD = {"": "unpacked on this node", "not-unpacked": "not unpacked on this node in time"}
CANNOT = "not started from a tree: this node's kernel or file systems cannot (warmstart doctor)"


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
    """Show the job the tree of its first image. Raises `RootNotShown`, `StoreError` or `ResourceError`."""
    record = context.record
    if not (record.cache and record.images) or record.image.startswith(CLAIMED):
        return Outcome("skipped")
    from warmstart.host.deadline import Deadline
    from warmstart.sets import StepImage
    from warmstart.wings.ready_roots import clones
    from warmstart.wings.ready_roots.settings import settings

    started = time.monotonic()
    name, path = next(iter(record.images.items()))
    private = next((store for reference, store in options.private if reference.canonical() == name), "")
    image = StepImage(name, record.image, path, private)
    context = context._replace(deadline=Deadline(context.deadline.at - MARGIN_S))
    try:
        clones.prepare(context)
        tree = clones.tree_of(context, image, context.deadline.within(settings(context.policy).wait))
        given = clones.Given("", tree) if isinstance(tree, str) else clones.give(context, image, [], tree)
    except (OSError, WarmstartError) as error:
        raise clones.failure(image, error) from error
    clones.tell(context, image, given, started)
    told = {name: TOLD.get(given.reason, CANNOT)}
    if given.reason:
        return Outcome("unchanged", dict(told))
    return Outcome("changed", dict(told), environment={VARIABLE: f"{record.run_directory}/{given.source}"})

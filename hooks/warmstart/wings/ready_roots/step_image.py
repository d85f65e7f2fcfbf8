"""What a step's image has here: the tree of an image that no prolog knew, shown while the job runs. Runs as root."""

from __future__ import annotations

from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.images import unpacks
from warmstart.step_image import StepImage, locked_run
from warmstart.steps.contract import Context
from warmstart.wings.ready_roots import clones, unpack
from warmstart.wings.ready_roots.settings import NAME


def provide(context: Context, image: StepImage, namespaces: list[int], deadline: Deadline) -> bool:
    """Show the job the tree of an image, also in open mount `namespaces`; audit why not.

    Return whether the image is still being unpacked.
    """
    context = context._replace(audit=context.audit.bind(step=NAME))
    policy, paths, run = context.policy, context.paths, context.run
    try:
        tree_or_why = unpack.problem(policy, paths) or unpacks.obtain(
            policy, clones.key_of(policy, image), image.reference, paths, run, deadline
        )
        with locked_run(context):  # it is not ended meanwhile
            clones.prepare(context)
            if isinstance(tree_or_why, str):
                given = clones.Given("", clones.NOT_UNPACKED)
            else:
                given = clones.give(context, image, namespaces, tree_or_why)
    except (OSError, WarmstartError) as error:
        context.audit.failed(clones.failure(image, error))
        return False
    clones.tell(context, image, given)
    return tree_or_why == unpacks.TOO_LONG

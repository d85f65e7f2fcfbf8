"""What a step's image has here: the tree of an image that no prolog knew, shown while the job runs. Runs as root."""

from __future__ import annotations

import time

from warmstart import sets
from warmstart.audit import events as core_events
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.sets import StepImage
from warmstart.steps.contract import Context
from warmstart.wings.ready_roots import clones
from warmstart.wings.ready_roots.settings import settings
from warmstart.wings.ready_roots.step import NAME


def provide(context: Context, image: StepImage, namespaces: list[int], deadline: Deadline) -> None:
    """Show the job the tree of an image, also in open mount `namespaces`; audit why not."""
    started = time.monotonic()
    context = context._replace(audit=context.audit.bind(step=NAME))
    try:
        tree = clones.tree_of(context, image, deadline.within(settings(context.policy).wait))
        with sets.locked_run(context):  # it is not ended meanwhile
            clones.prepare(context)
            given = clones.Given("", tree) if isinstance(tree, str) else clones.give(context, image, namespaces, tree)
    except (OSError, WarmstartError) as error:
        context.audit.emit(core_events.STEP_FAILED, error=clones.failure(image, error).as_audit())
        return
    clones.tell(context, image, given, started)

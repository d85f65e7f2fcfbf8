"""Step `unpack`: take the tree of the job's image, or have it unpacked and wait (docs/reference/images.md)."""

from __future__ import annotations

from warmstart import wing
from warmstart.host.deadline import Deadline
from warmstart.images.choice import recipe
from warmstart.images.query import query_by_rules
from warmstart.images.reference import Reference
from warmstart.images.store.layout import UNPACK_S, image_name
from warmstart.images.unpacked import ImageKey, shelf_of, take
from warmstart.lean import TYPE_CHECKING, NamedTuple
from warmstart.run.state import CLAIMED
from warmstart.steps.contract import Context, Outcome

if TYPE_CHECKING:
    from typing import Protocol

    from warmstart.paths import NodePaths
    from warmstart.policy.keys import Policy

    class UnpackPart(Protocol):
        """`unpack.py` of a wing that shows jobs their tree."""

        def problem(self, policy: Policy, paths: NodePaths) -> str:
            """Return why a tree is of no use to it on this node, "" if it is. Raises `OSError`."""


NAME = "unpack"


class Options(NamedTuple):
    """The image that the job's containers start from: its first one."""

    reference: Reference
    private: str  # the name of the private store that the job may read it in, "" for the shared one
    later: float  # seconds that the steps after this one need


def run(context: Context, options: Options) -> Outcome:
    """Take the tree. Without it the job starts as on a node without a shelf, so no failure concerns it."""
    run, policy, image = context.run, context.policy, context.run.own.image
    if not image or image.startswith(CLAIMED):
        return Outcome(detail={"reason": "the store has not its image"})
    kind = query_by_rules(options.reference, policy.images, recipe(policy.images.importer)).kind
    key = ImageKey(image_name(image, kind), options.private)
    deadline = Deadline(context.deadline.at - options.later).within(UNPACK_S)
    problem = ""
    try:
        for module in policy.parts("unpack"):
            part: UnpackPart = wing.load(module)
            if problem := part.problem(policy, context.paths):
                return Outcome(detail={"reason": problem})
        if tree := take(shelf_of(policy, run.node), key, context.paths, run, deadline):
            return Outcome(detail={"tree": tree.name})
        from warmstart.images import unpacks

        tree_or_why = unpacks.obtain(policy, key, options.reference.canonical(), context.paths, run, deadline)
        if not isinstance(tree_or_why, str):
            return Outcome(detail={"tree": tree_or_why.name})
        problem = tree_or_why
    except OSError as error:
        problem = error.strerror or str(error)
    return Outcome(detail={"reason": problem})

"""What the policy says of trees, in the form that hooks read. Hot path of jobs that ask for a tree."""

from __future__ import annotations

from warmstart.host import wire
from warmstart.lean import NamedTuple
from warmstart.paths import NodePaths
from warmstart.policy.compiled import Policy
from warmstart.profiles.defined import WHOLE

KEY = "trees"  # of the policy, and of a rule
WORD = "tree"  # of a request
TREE_S = 2 * 3600  # how long the packing of one tree may take
RENEWED_S = 12 * 3600  # age at which a copy is packed anew if a job asks for it
OLDEST_S = 2 * RENEWED_S  # age at which jobs are shown a copy no more
PROFILE = f"{WHOLE}{KEY}"  # where packed trees lie in a scope of the store
WAYS = ("spank", "namespace", "containers", "enroot")  # values of `constant_path` that show jobs their trees


class Trees(NamedTuple):
    """Which trees jobs may read from packed copies, and bounds of packing one; by default none."""

    prefixes: tuple[str, ...] = ()
    max_size: int = 0  # bytes
    keep: int = 0  # bytes of copies on a node


def offered(policy: Policy) -> Trees:
    """Return what the policy says of trees."""
    return wire.from_object(Trees, policy.own[KEY]) if KEY in policy.own else Trees()


def directory(paths: NodePaths) -> str:
    """Return where a node packs a tree."""
    return f"{paths.work}/trees"

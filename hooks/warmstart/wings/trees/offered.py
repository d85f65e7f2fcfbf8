"""What the policy says of trees, in the form that hooks read. Hot path of jobs that ask for a tree."""

from __future__ import annotations

from warmstart.host import wire
from warmstart.lean import NamedTuple
from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy, Size
from warmstart.profiles.contract import WHOLE

KEY = "trees"  # of the policy, and of a rule
WORD = "tree"  # of a request
Path = str
TREE_S = 2 * 3600  # how long the packing of one tree may take
RENEWED_S = 12 * 3600  # age at which a copy is packed anew if a job asks for it
OLDEST_S = 2 * RENEWED_S  # age at which jobs are shown a copy no more
PROFILE = f"{WHOLE}{KEY}"  # where packed trees lie in a scope of the store
WAYS = ("spank", "namespace", "containers", "enroot")  # values of `constant_path` that show jobs their trees


class Trees(NamedTuple):
    """Directories on shared file systems that jobs read from packed copies ([trees](../wings/trees.md))."""

    prefixes: tuple[Path, ...] = ()
    """Jobs may ask for directories below these, if root does not own them. Write each path without links, as `realpath`
    shows it. Without any, jobs may ask for none."""
    max_size: Size = 20 << 30
    """Bytes of one tree's files. A larger one is not packed."""
    keep: Size = 50 << 30
    """Packed copies that `warmstart maintain` leaves on a node, beside `seed.keep`. Least recently used copies go
    first, and none that a job reads. No tree is packed whose copy would be larger."""


def offered(policy: Policy) -> Trees:
    """Return what the policy says of trees."""
    return wire.from_object(Trees, policy.own[KEY]) if KEY in policy.own else Trees()


def directory(paths: NodePaths) -> str:
    """Return where a node packs a tree."""
    return f"{paths.work}/trees"

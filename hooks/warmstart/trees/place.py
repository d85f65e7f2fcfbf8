"""Where a packed tree lies in the store. Hot path of jobs that ask for a tree."""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING, dumps, sha256
from warmstart.profiles.defined import TREES
from warmstart.store.layout import Namespace

if TYPE_CHECKING:
    from warmstart.trees.current import Look

ENTRY = "tree"  # the one entry of a bundle, and the tree's directory in it
LEFT_OUT = "left-out"  # beside it: what its user could not read, if anything: the number, and a line for some of them
FORMAT = "1"  # raise it if older copies must not be shown any more


def facts_of(seen: Look) -> dict[str, str]:
    """Return the facts of a tree's namespace."""
    return {"format": FORMAT, "path": seen.path, "marker": seen.marker, "stamp": seen.stamp}


def place_of(store: str, scope: str, seen: Look) -> Namespace:
    """Return the namespace of a tree as it is now."""
    name = sha256(dumps(facts_of(seen), sort_keys=True).encode()).hexdigest()[:32]
    return Namespace(store, scope, TREES, name)

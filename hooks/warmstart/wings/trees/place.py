"""Where a packed tree lies in the store, and whose it is. Hot path of jobs that ask for a tree."""

from __future__ import annotations

from warmstart.caches.store.layout import Namespace
from warmstart.lean import TYPE_CHECKING, NamedTuple, Sequence, dumps, sha256
from warmstart.policy.shared import SharedPath, covering
from warmstart.profiles.contract import OWNERS
from warmstart.wings.trees.offered import PROFILE

if TYPE_CHECKING:
    from warmstart.wings.trees.current import Look

ENTRY = "tree"  # the one entry of a bundle, and the tree's directory in it
LEFT_OUT = "left-out"  # beside it: what the copy lacks, if anything: the number, and a line for some of it
FORMAT = "1"  # raise it if older copies must not be shown any more


class Home(NamedTuple):
    """The scope of the store that a job's copy of a tree comes from, and goes to."""

    scope: str
    shared: SharedPath | None  # None: it is the user's own


def home_of(path: str, granted: Sequence[SharedPath], own: str) -> Home:
    """Return where the copy of the tree at a path without links is; `own` is the user's scope."""
    shared = covering(path, granted)
    return Home(shared.scope if shared else own, shared)


def facts_of(seen: Look, shared: SharedPath | None) -> dict[str, str]:
    """Return the facts of a tree's namespace."""
    facts = {"format": FORMAT, "path": seen.path, "marker": seen.marker, "stamp": seen.stamp}
    if shared:
        facts[OWNERS] = " ".join(str(uid) for uid in shared.uids)
    return facts


def place_of(store: str, scope: str, facts: dict[str, str]) -> Namespace:
    """Return the namespace of a tree as it is now."""
    return Namespace(store, scope, PROFILE, sha256(dumps(facts, sort_keys=True).encode()).hexdigest()[:32])

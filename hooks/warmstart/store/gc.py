"""Which bundles of the store have to go, by last use and by size (threats, row 15: whoever takes most loses first).

Pure decisions; `upkeep.remove` acts on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from warmstart.policy.compiled import Tend
from warmstart.store.upkeep import Bundle

UNUSED = "unused for longer than tend.keep"
OVER = "its scope is larger than tend.{key}"


class Expired(NamedTuple):
    """A bundle that has to go, and why."""

    bundle: Bundle
    reason: str


def expired(bundles: Iterable[Bundle], policy: Tend, now: float) -> list[Expired]:
    """Return what has to go: all that is unused for `keep`, then, scope by scope, what was not used for longest."""
    found = []
    scopes: dict[str, list[Bundle]] = {}
    for bundle in bundles:
        if bundle.used < now - policy.keep:
            found.append(Expired(bundle, UNUSED))
        else:
            scopes.setdefault(bundle.scope, []).append(bundle)
    for scope, kept in scopes.items():
        key = scope.partition("-")[0]
        limit = {"user": policy.per_user, "account": policy.per_account}.get(key, policy.per_site)
        found.extend(Expired(bundle, OVER.format(key=f"per_{key}")) for bundle in _beyond(kept, limit))
    return found


def _beyond(bundles: list[Bundle], limit: int) -> list[Bundle]:
    excess = sum(bundle.size for bundle in bundles) - limit
    going = []
    for bundle in sorted(bundles, key=lambda b: (b.used, b.bundle)):
        if excess <= 0:
            break
        going.append(bundle)
        excess -= bundle.size
    return going

"""Which bundles of the store have to go, by last use and by size (threats, row 15: whoever takes most loses first).

Pure decisions; `maintenance.remove` acts on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from warmstart.policy.compiled import Maintenance
from warmstart.store import usage
from warmstart.store.maintenance import Bundle

UNUSED = "unused for longer than maintenance.keep"
OVER = "its scope is close to maintenance.{key}"
HIGH, LOW = 0.9, 0.8  # of a scope's quota: beyond the first, maintenance removes down to the second


class Expired(NamedTuple):
    """A bundle that has to go, and why."""

    bundle: Bundle
    reason: str


def expired(candidates: Iterable[Bundle], policy: Maintenance, now: float) -> list[Expired]:
    """Return what has to go: all that is unused for `keep`, then, scope by scope, what was not used for longest."""
    found = []
    scopes: dict[str, list[Bundle]] = {}
    for bundle in candidates:
        if bundle.used < now - policy.keep:
            found.append(Expired(bundle, UNUSED))
        else:
            scopes.setdefault(bundle.scope, []).append(bundle)
    for scope, kept in scopes.items():
        reason = OVER.format(key=f"per_{scope.partition('-')[0]}")
        found.extend(Expired(bundle, reason) for bundle in _beyond(kept, usage.quota(scope, policy)))
    return found


def _beyond(bundles: list[Bundle], quota: int) -> list[Bundle]:
    """Return what has to go so that the next ones to publish have room: at the quota they are refused.

    Within the quota the bundle that was used last stays.
    """
    size = sum(bundle.size for bundle in bundles)
    excess = size - LOW * quota if size > HIGH * quota else 0
    going = []
    by_use = sorted(bundles, key=lambda b: (b.used, b.bundle))
    for bundle in by_use if size > quota else by_use[:-1]:
        if excess <= 0:
            break
        going.append(bundle)
        excess -= bundle.size
    return going

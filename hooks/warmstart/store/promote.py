"""Promotion: an administrator copies entries from one scope into a more trusted one (design, rule 5).

The other way up, for publishing is only for named users. What arrives keeps the name of whose job made it, so that
blocking that user blocks it there, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from warmstart.errors import UserError
from warmstart.host.deadline import Deadline
from warmstart.repack.merge import origin, publish_stage
from warmstart.store.bundles import Published
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Draft
from warmstart.store.unpack import BundleSelection, RepackSettings, unpacked

_TRUST = {"user": 0, "account": 1, "site": 2}


class PromotionRefused(UserError):
    """Entries go only from a less into a more trusted scope, and only those that a bundle has."""

    code = "promotion-refused"
    template = "{problem}"
    hint = "`warmstart cache ls` has scopes, `warmstart cache show BUNDLE` the entries"


class Choice(NamedTuple):
    """What to promote, and where to."""

    where: Namespace
    bundle: str
    entries: Collection[str]  # none: all
    scope: str


def promote(bench: RepackSettings, choice: Choice, deadline: Deadline) -> Published:
    """Publish entries of a bundle in a more trusted scope."""
    where, bundle, entries, scope = choice
    if _trust(where.scope) >= _trust(scope):
        raise PromotionRefused(problem=f"{scope} is not more trusted than {where.scope}")
    found = bench.store.manifest(where, bundle, deadline)
    missing = sorted(set(entries) - found.entries.keys())
    if missing:
        raise PromotionRefused(problem=f"bundle {bundle} has no entry {missing[0]!a}")
    chosen = sorted(entries) or sorted(found.entries)
    entries_chosen = {entry: found.entries[entry] for entry in chosen}
    draft = Draft(found.producer, found.facts, entries_chosen, {entry: origin(found, entry) for entry in chosen})
    with unpacked(bench, [BundleSelection(where, found, chosen)], deadline) as stage:
        return publish_stage(bench, stage, where._replace(scope=scope), draft, deadline)


def _trust(scope: str) -> int:
    kind, _, rest = scope.partition("-")
    if kind not in _TRUST or (kind == "site") == bool(rest):
        raise PromotionRefused(problem=f"{scope!a} is no scope: user-UID-NAME, account-NAME or site")
    return _TRUST[kind]

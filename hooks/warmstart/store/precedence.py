"""Which bundle readers take an entry from: the ids that publishers give. Runs as the store's owner.

Within a scope the bundle whose id sorts first has an entry, and that is all that readers, compaction and masks know.
So whoever is first keeps its entries: a new bundle's id sorts last. What takes another's place (a compacted bundle, or
one of a profile that keeps the newest) gets an id a microsecond before that one's, and names it in `replaces`.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from warmstart.host.files import opened_dir
from warmstart.store import blocklist, index, layout
from warmstart.store.blocklist import Blocks
from warmstart.store.index import Listed
from warmstart.store.layout import Namespace, store_errors
from warmstart.store.manifest import Entries, File, Manifest

UNCHANGED = "unchanged"
SUPERSEDED = "superseded"
SMALLER = "smaller"


class Base(NamedTuple):
    """The bundle that a job began with."""

    scope: str
    bundle: str


def with_new_id(found: Manifest, before: index.Index) -> Manifest | None:
    """Give a bundle its id, younger than all there are; None where the scope has all its entries.

    Clocks of nodes differ; a bundle of a slow clock must not become the oldest and change what readers get.
    """
    if before.entries().issuperset(found.entries):
        return None
    newest = max([*(listed.bundle for listed in before.bundles), *before.refused], default="")
    now = time.time_ns() // 1000
    made = max(now, layout.microseconds_of(newest) + 1) if newest else now
    return found._replace(bundle=layout.bundle_id(made, found.sha256), created=made / 1e6)


def with_older_id(found: Manifest, before: index.Index) -> Manifest | None:
    """Give a bundle that replaces others an id before that of the oldest; None where one of them has gone."""
    if not {listed.bundle for listed in before.bundles}.issuperset(found.replaces):
        return None
    oldest = layout.microseconds_of(min(found.replaces)) - 1
    return found._replace(bundle=layout.bundle_id(oldest, found.sha256), created=time.time())


def with_id_over(blocked: Blocks, based_on: str, found: Manifest, before: index.Index) -> Manifest | None:
    """Give a bundle the place of `based_on`, from which its content grew ("": from nothing).

    None where readers take the entry from another one by now: what somebody else made of it is never lost without
    a word. Bundles of blocked users, which readers pass over, stay behind this one, too.
    """
    having = _having(found.entries, before)
    if _current_bundle(having, blocked) != based_on:
        return None
    if not having:
        return with_new_id(found, before)
    return with_older_id(found._replace(replaces=[listed.bundle for listed in having]), before)


def needless(where: Namespace, based_on: Base | None, entries: Entries, owner: str) -> str:
    """Return why these entries need not take the place of those that a job began with; "" where they should.

    `entries` are a draft's. `UNCHANGED`, `SUPERSEDED`; `SMALLER`: such caches grow, so one that shrank was begun anew
    or cut short. `StoreFailed`.
    """
    with store_errors("compare with the newest"):
        having = _having(entries, index.read(where.path, owner))
        current = _current_bundle(having, blocklist.read(where.store))
        files = _files(where._replace(scope=based_on.scope), based_on.bundle) if based_on else {}
        newest = _files(where, current) if current else {}
    mine = {path: file for each in entries.values() for path, file in each.items()}
    if _content(mine) in (_content(files), _content(newest)):
        return UNCHANGED
    if current and based_on != (where.scope, current):
        return SUPERSEDED
    return SMALLER if _size(mine) < _size(files) else ""


def _having(entries: Collection[str], before: index.Index) -> list[Listed]:
    """Return the bundles that have any of the entries, the one that readers take them from first."""
    return [listed for listed in before.bundles if not listed.entries.keys().isdisjoint(entries)]


def _current_bundle(having: list[Listed], blocked: Blocks) -> str:
    return next((listed.bundle for listed in having if not blocked.user(listed.user, listed.uid)), "")


def _files(where: Namespace, bundle: str) -> dict[str, File]:
    """Return the files of a bundle; none where it, or its namespace, has gone."""
    try:
        with opened_dir(where.path) as fd:
            found = index.read_manifest(fd, bundle)
    except FileNotFoundError:
        return {}
    return {path: file for files in found.entries.values() for path, file in files.items()}


def _content(files: dict[str, File]) -> dict[str, tuple[int, str]]:
    return {path: (file.size, file.sha256) for path, file in files.items()}


def _size(files: dict[str, File]) -> int:
    return sum(file.size for file in files.values())

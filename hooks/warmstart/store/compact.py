"""Compaction: many bundles of one user in a namespace become one, and no reader notices.

The new bundle has those entries of which the user was the first publisher, so it may lie below all that there is: its
id is a microsecond older than that of its oldest source, and whoever reads the index next takes all from it. Sources
stay for whoever has read the index before (`upkeep.superseded`). Whoever dies on the way leaves the sources, or the new
bundle beside them; both are whole. Bundles of different users are never merged: the kill switch works by user.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir
from warmstart.host.worker import Worker
from warmstart.store import bundles, index
from warmstart.store.index import Listed
from warmstart.store.layout import Namespace, store_errors
from warmstart.store.manifest import Manifest
from warmstart.store.pack import pack
from warmstart.store.unpack import Bench, Wanted, read_manifest, unpacked

FEWEST = 4  # bundles of one user: fewer are left alone
MOST_BYTES = 2 << 30
MOST_ENTRIES = 50_000


class Merger(NamedTuple):
    """Bundles to make one of, oldest first, and which entries to take from each."""

    user: str
    sources: list[str]
    entries: dict[str, list[str]]  # bundle → entries; {} for one of which nothing is taken


def plan(where: Sequence[str], owner: str, fewest: int, most_bytes: int = MOST_BYTES) -> list[Merger]:
    """Return what is worth merging in a namespace. Runs as the store's owner."""
    with store_errors("plan a compaction"), opened_dir(Namespace(*where).path) as fd:
        found = index.update(fd, owner).bundles
    return mergers(found, fewest, most_bytes)


def mergers(found: list[Listed], fewest: int, most_bytes: int = MOST_BYTES) -> list[Merger]:
    """Return what is worth merging of a namespace's bundles, oldest first; no merger has more bytes than that."""
    replaced = {old for listed in found for old in listed.replaces}
    taken: set[str] = set()
    wanted: dict[str, list[str]] = {}
    groups: dict[tuple[str, int], list[Listed]] = {}
    for listed in found:
        wanted[listed.bundle] = [entry for entry in listed.entries if entry not in taken]
        taken.update(listed.entries)
        if listed.bundle not in replaced:
            groups.setdefault((listed.user, listed.uid), []).append(listed)
    plans = []
    for (user, _), group in groups.items():
        chosen = _bounded(group, wanted, most_bytes)
        if len(chosen) >= fewest and any(wanted[listed.bundle] for listed in chosen):
            sources = [listed.bundle for listed in chosen]
            plans.append(Merger(user, sources, {bundle: wanted[bundle] for bundle in sources if wanted[bundle]}))
    return plans


def _bounded(group: list[Listed], wanted: dict[str, list[str]], most_bytes: int) -> list[Listed]:
    """Return as many of a user's bundles as fit into one: the smallest ones, oldest first."""
    size = count = 0
    chosen = []
    for listed in sorted(group, key=lambda listed: listed.size):
        size += listed.size
        count += len(wanted[listed.bundle])
        if size > most_bytes or count > MOST_ENTRIES:
            break
        chosen.append(listed)
    return sorted(chosen, key=lambda listed: listed.bundle)


def compact(bench: Bench, where: Namespace, merger: Merger, publisher: str, deadline: Deadline) -> dict[str, Any]:
    """Make one bundle of several and publish it; return what `bundles.publish_bundle` does.

    `bundle` is None where one of the sources has gone meanwhile. `BundleDamaged` names a source to be quarantined.
    """
    found = {bundle: read_manifest(bench, where, bundle, deadline) for bundle in merger.sources}
    wanted = [Wanted(where, found[bundle], entries) for bundle, entries in merger.entries.items()]
    draft = _draft(merger, found)
    with unpacked(bench, wanted, deadline) as stage:
        return publish_stage(bench, stage, where, draft, publisher, deadline)


def publish_stage(  # noqa: PLR0917 - what publishing takes, and where from
    bench: Bench, stage: str, where: Namespace, draft: dict[str, Any], publisher: str, deadline: Deadline
) -> dict[str, Any]:
    """Pack `entries/` of an upkeep's stage and publish it as the store's owner."""
    fd = pack(f"{stage}/entries", f"{stage}/bundle.sqsh", deadline)
    try:
        with Worker(bench.owner, keep=(fd,)) as worker:
            function = bundles.publish_compacted if draft["replaces"] else bundles.publish_bundle
            answer: dict[str, Any] = worker.call(function, where, fd, draft, publisher, deadline=deadline)
        return answer
    finally:
        os.close(fd)


def _draft(merger: Merger, found: dict[str, Manifest]) -> dict[str, Any]:
    oldest = found[merger.sources[0]]
    taken = [(found[bundle], entry) for bundle, entries in merger.entries.items() for entry in entries]
    return {
        "producer": oldest.producer,
        "facts": oldest.facts,
        "entries": {entry: source.entries[entry] for source, entry in taken},
        "origins": {entry: origin(source, entry) for source, entry in taken},
        "replaces": merger.sources,
    }


def origin(source: Manifest, entry: str) -> dict[str, Any]:
    """Return who made an entry, and the bundle that it was first published in."""
    return source.origins.get(entry) or {**source.producer, "scope": source.scope, "bundle": source.bundle}

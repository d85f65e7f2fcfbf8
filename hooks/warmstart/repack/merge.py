"""Compaction: many bundles of one user in a namespace become one, and no reader notices.

The new bundle has those entries of which the user was the first publisher, so it may lie below all that there is: its
id is a microsecond older than that of its oldest source, and whoever reads the index next takes all from it. Sources
stay for whoever has read the index before (`maintenance.superseded`). Whoever dies on the way leaves the sources, or
the new bundle beside them; both are whole. Bundles of different users are never merged: the kill switch works by user.
"""

from __future__ import annotations

import os

from warmstart.harvest.pack import pack
from warmstart.host.deadline import Deadline
from warmstart.store.bundles import Published
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Merger
from warmstart.store.manifest import Draft, Manifest, Origin
from warmstart.store.unpack import BundleSelection, RepackSettings, unpacked

FEWEST = 4  # bundles of one user: fewer are left alone
MOST_BYTES = 2 << 30


def compact(bench: RepackSettings, where: Namespace, merger: Merger, deadline: Deadline) -> Published:
    """Make one bundle of several and publish it.

    `bundle` is None where one of the sources has gone meanwhile. `BundleDamaged` names a source to be quarantined.
    """
    found = {bundle: bench.store.manifest(where, bundle, deadline) for bundle in merger.sources}
    wanted = [BundleSelection(where, found[bundle], entries) for bundle, entries in merger.entries.items()]
    draft = _draft(merger, found)
    with unpacked(bench, wanted, deadline) as stage:
        return publish_stage(bench, stage, where, draft, deadline)


def publish_stage(bench: RepackSettings, stage: str, where: Namespace, draft: Draft, deadline: Deadline) -> Published:
    """Pack `entries/` of a maintenance run's stage and publish it as the store's owner."""
    fd = pack(f"{stage}/entries", f"{stage}/bundle.sqsh", deadline)
    try:
        publish = bench.store.publish_compacted if draft.replaces else bench.store.publish
        return publish(where, fd, draft, deadline)
    finally:
        os.close(fd)


def _draft(merger: Merger, found: dict[str, Manifest]) -> Draft:
    oldest = found[merger.sources[0]]
    taken = [(found[bundle], entry) for bundle, entries in merger.entries.items() for entry in entries]
    return Draft(
        oldest.producer,
        oldest.facts,
        {entry: source.entries[entry] for source, entry in taken},
        {entry: origin(source, entry) for source, entry in taken},
        merger.sources,
    )


def origin(source: Manifest, entry: str) -> Origin:
    """Return who made an entry, and the bundle that it was first published in."""
    return source.origins.get(entry) or Origin(*source.producer, source.scope, source.bundle)

"""Merge what the nodes of a run handed in, and publish it as one bundle for each profile and namespace. Runs as root.

As in `repack.rewrite`: the store's owner fetches the parts, the validator's uid unpacks them, every file is compared
with its manifest, root packs anew. Of an entry on several nodes the head node's version is taken, else that of the
first by name. What was found stale is the head node's word alone, but for what another node itself has handed in while
the job ran, and has rewritten since. The nodes' parts were judged when they were harvested.

Parts are removed after they are published. Whoever dies in between leaves both, and a repeat publishes nothing new:
readers have all entries by then.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from warmstart.harvest.collect import LONGEST_DRAFT
from warmstart.host.deadline import Deadline
from warmstart.repack.rewrite import BundleSelection, RepackSettings, publish_stage, unpacked
from warmstart.seed.layers import parents
from warmstart.slurm.nodes import first
from warmstart.store import bundles
from warmstart.store.bundles import Published
from warmstart.store.layout import Namespace
from warmstart.store.manifest import MOST_ENTRIES, Base, Draft, Entries, File, Manifest, Origin, entry_weight
from warmstart.store.parts import Handed, Listing, Part, RunParts

_PER_ORIGIN = 300  # most bytes of JSON of an entry's origin, without the entry's name


class Merged(NamedTuple):
    """What one run published in one namespace."""

    published: Published
    draft: Draft
    left_out: int  # entries above the limits, or whose names fit no directory with the others


def by_namespace(listing: Listing) -> dict[Namespace, list[Part]]:
    """Return the parts of each namespace in the order in which their entries are taken."""
    head = first(listing.standing.nodelist)
    ordered = sorted(listing.parts, key=lambda part: (part.producer.node != head, part.producer.node, part.bundle))
    groups: dict[Namespace, list[Part]] = {}
    for part in ordered:
        groups.setdefault(part.where, []).append(part)
    return groups


def merge(settings: RepackSettings, run: RunParts, parts: list[Part], deadline: Deadline, *, head: str) -> Merged:
    """Publish the parts of one namespace as one bundle. `head` is the job's first node.

    Raises `BundleDamaged` or `ManifestUnreadable` with the id of the part that cannot be used, and the errors of
    `rewrite.unpacked`, `pack` and `StoreClient.publish`.
    """
    union = _Union()
    for part in parts:  # one at a time: a job chooses how long the names are
        handed = settings.store.part(run, part.bundle, deadline)
        union.add(parts[0].where, handed, is_head=part.producer.node == head)
    draft = union.draft()
    copy = partial(_fetch, settings, run, deadline)
    with unpacked(settings, union.selections, deadline, copy) as stage:
        published = publish_stage(settings, stage, parts[0].where, draft, deadline)
    return Merged(published, draft, union.left_out)


def _fetch(settings: RepackSettings, run: RunParts, deadline: Deadline, selection: BundleSelection, fd: int) -> None:
    settings.store.fetch_part(run, selection.manifest, deadline, into=fd)


class _Union:
    """The entries of several parts, each once, as far as one bundle and one directory hold them."""

    def __init__(self) -> None:
        self._entries: Entries = {}
        self._origins: dict[str, Origin] = {}
        self._based_on: dict[str, Base] = {}
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._size = 0  # bytes
        self._weight = 0
        self._first: Manifest | None = None
        self._is_fresh = False
        self.selections: list[BundleSelection] = []
        self.left_out = 0

    def add(self, where: Namespace, handed: Handed, *, is_head: bool) -> None:
        """Take the entries of a part that are not there yet."""
        part = handed.manifest
        self._first = self._first or part
        self._is_fresh = self._is_fresh or handed.fresh
        new = {entry: files for entry, files in part.entries.items() if entry not in self._entries}
        taken = [entry for entry, files in new.items() if self._take(entry, files)]
        self.left_out += len(new) - len(taken)
        based_on = handed.based_on
        self._based_on |= based_on if is_head else {entry: based_on[entry] for entry in taken if entry in based_on}
        if part.producer.node != self._first.producer.node:
            self._origins |= dict.fromkeys(taken, Origin(*part.producer, part.scope, ""))
        if taken:
            # Of the others one is enough to tell that the part is not unpacked as a whole.
            others = [*(part.entries.keys() - {*taken})][:1]
            kept = {entry: part.entries[entry] for entry in (*taken, *others)}
            self.selections.append(BundleSelection(where, part._replace(entries=kept), taken))

    def draft(self) -> Draft:
        """Return the draft of the bundle. Raises `ValueError` without any part."""
        if self._first is None:
            raise ValueError("no part")
        return Draft(
            self._first.producer,
            self._first.facts,
            self._entries,
            self._origins,
            based_on=self._based_on,
            fresh=self._is_fresh,
        )

    def _take(self, entry: str, files: dict[str, File]) -> bool:
        """Take an entry; return False if it is above the limits or one of its files is another's directory."""
        folders = {folder for path in files for folder in parents(path)}
        size = sum(file.size for file in files.values())
        weight = entry_weight(entry, files) + len(entry) + _PER_ORIGIN
        if (
            len(self._entries) >= MOST_ENTRIES
            or self._size + size > bundles.MOST_BYTES
            or self._weight + weight > LONGEST_DRAFT
            or not self._files.isdisjoint(folders | files.keys())
            or not self._folders.isdisjoint(files)
        ):
            return False
        self._entries[entry] = files
        self._files.update(files)
        self._folders.update(folders)
        self._size += size
        self._weight += weight
        return True

"""What reports, metrics and `explain` say of trees."""

from __future__ import annotations

from warmstart.audit import values
from warmstart.audit.line import Line
from warmstart.audit.told import Metric, Told
from warmstart.policy.units import format_size
from warmstart.wings.trees import events

SHOWN = Metric(
    "warmstart_trees_shown",
    "Trees of jobs, by how they were read on a node (copy, itself), and why the tree itself was.",
    ("way", "reason"),
)
PACKS = Metric("warmstart_tree_packs", "Attempts to pack a tree.", ("outcome",), zeros=(("ok",), ("failed",)))
PACKED_BYTES = Metric("warmstart_tree_packed_bytes", "Bytes of packed trees that were published.")
METRICS = (SHOWN, PACKS, PACKED_BYTES)
_FETCHED = "warmstart_bundle_fetched_bytes"  # the core's, of all bundles


def _shown(line: Line) -> Told:
    reason = values.text(line, "reason")
    counts = {(SHOWN.name, ("itself" if reason else "copy", reason)): 1.0}
    return Told("tree", counts=counts | {(_FETCHED, ()): float(values.count(line, "fetched_bytes"))})


def _packed(line: Line) -> Told:
    size = values.count(line, "size")
    counts = {(PACKS.name, ("ok",)): 1.0, (PACKED_BYTES.name, ()): float(size)}
    return Told("packs", values.text(line, "tree"), f"packed: {format_size(size)}", counts)


def _failed(_: Line) -> Told:
    return Told("packs", counts={(PACKS.name, ("failed",)): 1.0})


EVENTS = {events.TREE_SHOWN: _shown, events.TREE_PACKED: _packed, events.TREE_PACK_FAILED: _failed}

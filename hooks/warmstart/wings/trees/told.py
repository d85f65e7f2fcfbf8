"""What reports and `explain` say of trees."""

from __future__ import annotations

from warmstart.audit import values
from warmstart.audit.line import Line
from warmstart.audit.told import Told
from warmstart.policy.units import format_size
from warmstart.wings.trees import events


def _shown(line: Line) -> Told:
    reason = values.text(line, "reason")
    return Told("tree", counts={f"trees shown: {f'itself, {reason}' if reason else 'copy'}": 1})


def _packed(line: Line) -> Told:
    size = values.count(line, "size")
    counts = {"trees packed": 1, "tree packed bytes": size}
    return Told("packs", values.text(line, "tree"), f"packed: {format_size(size)}", counts)


def _failed(_: Line) -> Told:
    return Told("packs", counts={"trees not packed": 1})


EVENTS = {events.TREE_SHOWN: _shown, events.TREE_PACKED: _packed, events.TREE_PACK_FAILED: _failed}

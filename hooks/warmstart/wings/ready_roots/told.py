"""What reports and `explain` say of ready roots."""

from __future__ import annotations

from warmstart.audit import values
from warmstart.audit.line import Line
from warmstart.audit.told import Told
from warmstart.wings.ready_roots import events
from warmstart.wings.ready_roots.settings import IMAGE, TREE, UNPACKED, WAYS
from warmstart.wings.ready_roots.step import NAME

IN_WORDS = {TREE: "from the node's tree", IMAGE: "from the image's file", UNPACKED: "unpacked for themselves"}
NOT_KNOWN = "not known: enroot's hook said nothing"


def _shown(line: Line) -> Told:
    way, reason = values.text(line, "way"), values.text(line, "reason")
    shown = TREE if way == TREE else f"none, {reason}"
    return Told(NAME, counts={f"ready roots: {shown}": 1})


def _started(line: Line) -> Told:
    counts = {way: number for way in WAYS if (number := values.count(line, way))}
    text = ", ".join(f"{number} {IN_WORDS[way]}" for way, number in counts.items())
    started = {f"containers started: {way}": number for way, number in counts.items()}
    return Told(NAME, "the job's containers", text or NOT_KNOWN, started)


EVENTS = {events.ROOT_SHOWN: _shown, events.CONTAINERS_STARTED: _started}

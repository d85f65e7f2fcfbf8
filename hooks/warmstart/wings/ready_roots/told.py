"""What reports, metrics and `explain` say of ready roots."""

from __future__ import annotations

from warmstart.audit import values
from warmstart.audit.line import Line
from warmstart.audit.told import Metric, Told
from warmstart.wings.ready_roots import events
from warmstart.wings.ready_roots.settings import IMAGE, TREE, UNPACKED, WAYS
from warmstart.wings.ready_roots.step import NAME

SHOWN = Metric(
    "warmstart_ready_roots",
    "Images of jobs and steps, by whether their node had them unpacked (tree, none), and why not.",
    ("way", "reason"),
)
STARTED = Metric(
    "warmstart_containers_started",
    "Containers, by what their root came from, as their jobs say (tree, image, unpacked).",
    ("way",),
)
METRICS = (SHOWN, STARTED)
IN_WORDS = {TREE: "from the node's tree", IMAGE: "from the image's file", UNPACKED: "unpacked for themselves"}
NOT_KNOWN = "not known: enroot's hook said nothing"


def _shown(line: Line) -> Told:
    way, reason = values.text(line, "way"), values.text(line, "reason")
    return Told(NAME, counts={(SHOWN.name, (TREE if way == TREE else "none", reason)): 1.0})


def _started(line: Line) -> Told:
    counts = {way: values.count(line, way) for way in WAYS}
    text = ", ".join(f"{number} {IN_WORDS[way]}" for way, number in counts.items() if number)
    added = [((STARTED.name, (way,)), float(number)) for way, number in counts.items() if number]
    return Told(NAME, "the job's containers", text or NOT_KNOWN, dict[tuple[str, tuple[str, ...]], float](added))


EVENTS = {events.ROOT_SHOWN: _shown, events.CONTAINERS_STARTED: _started}

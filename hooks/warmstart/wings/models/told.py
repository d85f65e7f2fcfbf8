"""What reports and `explain` say of models."""

from __future__ import annotations

from warmstart.audit import values
from warmstart.audit.line import Line
from warmstart.audit.told import Told
from warmstart.policy.units import format_size
from warmstart.wings.models import events


def _shown(line: Line) -> Told:
    reason = values.text(line, "reason")
    return Told("model", counts={f"models shown: {', '.join(filter(None, (values.text(line, 'way'), reason)))}": 1})


def _copied(line: Line) -> Told:
    size = values.count(line, "fetched_bytes")
    counts = {"models copied": 1, "model copied bytes": size}
    return Told("models", values.text(line, "model"), f"copied: {format_size(size)}", counts)


def _failed(_: Line) -> Told:
    return Told("models", counts={"models not copied": 1})


EVENTS = {events.MODEL_SHOWN: _shown, events.MODEL_COPIED: _copied, events.MODEL_COPY_FAILED: _failed}

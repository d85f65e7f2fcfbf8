"""What reports, metrics and `explain` say of models."""

from __future__ import annotations

from warmstart.audit import values
from warmstart.audit.line import Line
from warmstart.audit.told import Metric, Told
from warmstart.policy.units import format_size
from warmstart.wings.models import events

SHOWN = Metric(
    "warmstart_models_shown",
    "Models of jobs, by how they were read on a node (copy, itself), and why the model itself was.",
    ("way", "reason"),
)
COPIES = Metric("warmstart_model_copies", "Attempts to copy a model.", ("outcome",), zeros=(("ok",), ("failed",)))
COPIED_BYTES = Metric("warmstart_model_copied_bytes", "Bytes of models that were read for copies.")
METRICS = (SHOWN, COPIES, COPIED_BYTES)


def _shown(line: Line) -> Told:
    return Told("model", counts={(SHOWN.name, (values.text(line, "way"), values.text(line, "reason"))): 1.0})


def _copied(line: Line) -> Told:
    size = values.count(line, "fetched_bytes")
    counts = {(COPIES.name, ("ok",)): 1.0, (COPIED_BYTES.name, ()): float(size)}
    return Told("models", values.text(line, "model"), f"copied: {format_size(size)}", counts)


def _failed(_: Line) -> Told:
    return Told("models", counts={(COPIES.name, ("failed",)): 1.0})


EVENTS = {events.MODEL_SHOWN: _shown, events.MODEL_COPIED: _copied, events.MODEL_COPY_FAILED: _failed}

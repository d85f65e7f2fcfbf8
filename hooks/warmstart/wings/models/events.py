"""The wing's events (docs/wings/models.md)."""

from __future__ import annotations

from warmstart.audit.line import Event

MODEL_COPIED = Event("model.copied")
MODEL_COPY_FAILED = Event("model.copy-failed")
MODEL_EVICTED = Event("model.evicted")

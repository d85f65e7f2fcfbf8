"""The wing's events (docs/wings/specs.md)."""

from __future__ import annotations

from warmstart.audit.events import Event

SPEC_WRITTEN = Event("spec.written")
SPEC_FAILED = Event("spec.failed")

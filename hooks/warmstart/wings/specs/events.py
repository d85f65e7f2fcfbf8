"""The wing's event (docs/wings/specs.md)."""

from __future__ import annotations

from warmstart.audit.line import Event

SPEC_FAILED = Event("spec.failed")

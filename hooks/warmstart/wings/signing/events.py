"""The wing's events (docs/wings/signing.md)."""

from __future__ import annotations

from warmstart.audit.events import Event

LIST_SIGNED = Event("list.signed")

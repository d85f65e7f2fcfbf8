"""The wing's events (docs/wings/ports.md)."""

from __future__ import annotations

from warmstart.audit.events import Event

RENDEZVOUS_RESERVED = Event("rendezvous.reserved")
RENDEZVOUS_RELEASED = Event("rendezvous.released")

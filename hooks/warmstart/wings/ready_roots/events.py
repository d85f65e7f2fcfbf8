"""The wing's events (docs/wings/ready_roots.md)."""

from __future__ import annotations

from warmstart.audit.events import Event

ROOT_SHOWN = Event("root.shown")
CONTAINERS_STARTED = Event("containers.started")

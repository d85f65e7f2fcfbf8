"""The wing's event (docs/wings/prefetch.md)."""

from __future__ import annotations

from warmstart.audit.line import Event

IMAGE_PREFETCHED = Event("image.prefetched")

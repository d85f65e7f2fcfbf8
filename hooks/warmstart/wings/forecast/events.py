"""The wing's events (docs/wings/forecast.md)."""

from __future__ import annotations

from warmstart.audit.events import Event

IMAGE_OBSERVED = Event("image.observed")
CACHE_OBSERVED = Event("cache.observed")

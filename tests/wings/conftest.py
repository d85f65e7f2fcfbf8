"""Fixtures of the core's unit tests, for those of wings."""

from __future__ import annotations

from tests.unit.conftest import context, entry_site

__all__ = ["context", "entry_site"]

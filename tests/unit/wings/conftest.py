"""Fixtures of the core's tests of the policy."""

from __future__ import annotations

from tests.unit.policy.conftest import compiled_of, site

__all__ = ["compiled_of", "site"]

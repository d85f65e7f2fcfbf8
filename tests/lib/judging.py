"""Helpers shared by the tests of profiles; the fixtures are in tests/unit/profiles/conftest.py."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, settings

MTIME = 1_700_000_000_123_456_789  # of every staged file; the stage keeps what a job's files have
Judge = Callable[[str, dict[str, bytes]], "str | None"]
# Hypothesis runs all examples of a test in one stage: each replaces the files of the one before.
SAME_STAGE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

"""Fixtures of the core's tests of private images."""

from __future__ import annotations

from tests.slurm.test_private_images import private, store, team

__all__ = ["private", "store", "team"]

"""Tests that need root, and neither Slurm nor a registry: they mount, give files away, take other identities."""

from __future__ import annotations

import os

import pytest

from tests.support.requirements import unavailable


@pytest.fixture(autouse=True)
def as_root() -> None:
    """Skip, or fail in CI, what a plain user runs; `tests/unit` has what he can."""
    if os.geteuid() != 0:
        unavailable("needs root")

"""Newer releases of Slurm pass what talks to Slurm: 24.11 of Debian 13, and 26.05 of sid. The host has 22.05."""

from __future__ import annotations

import pytest

from tests.releases.roots import passes, root_of


@pytest.mark.sweep
@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_a_newer_slurm(capable_host: None, suite: str) -> None:
    passes(root_of(suite), "-n", "3", "-m", "slurm and not sweep", "tests/slurm")

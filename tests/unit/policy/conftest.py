"""Fixtures of tests of the policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.policy_site import Compile, Site
from warmstart.policy.keys import Policy


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "etc")


@pytest.fixture
def compiled_of(site: Site) -> Compile:
    """Return a function that compiles a policy's text."""

    def compiled(text: str) -> Policy:
        site.write(text)
        return site.compiled()

    return compiled

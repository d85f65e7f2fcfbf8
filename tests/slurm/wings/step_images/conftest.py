"""Fixtures of steps that ask for images, and of the core's tests of private images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lib.site import Site
from tests.lib.wings.step_images.steps import served
from tests.slurm.test_private_images import private, store, team

__all__ = ["private", "store", "team"]


@pytest.fixture
def asked(site: Site) -> Iterator[Site]:
    """Return the site with the socket."""
    with served(site):
        yield site

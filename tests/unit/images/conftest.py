"""A site with an empty image store, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib import image_site
from warmstart.images.query import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "store").mkdir()
    return image_site.site(tmp_path / "store", tmp_path / "workspace")

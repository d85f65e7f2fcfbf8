"""A node where whoever runs the tests has trees packed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.wings.trees.sites import TreeSite


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TreeSite]:
    before = os.umask(0o022)  # hooks set that of their process, which is this one
    yield TreeSite(tmp_path, as_me=monkeypatch)
    os.umask(before)

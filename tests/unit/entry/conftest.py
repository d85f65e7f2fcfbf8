"""An installation for the tests of what people and Slurm call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.entry_site import EntrySite


@pytest.fixture
def entry_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EntrySite]:
    """Give an installation whose accounts are all ours; hooks set the umask of their process, which is this one."""
    before = os.umask(0o022)
    yield EntrySite(tmp_path, monkeypatch)
    os.umask(before)

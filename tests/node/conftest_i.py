"""Fixtures that several integration tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.image_place import Place, Store, opened_place
from warmstart.cli import maintain


@pytest.fixture(scope="module")
def place(capable_host: None) -> Iterator[Place]:
    """Return a registry, accounts and a directory for this module."""
    with opened_place() as made:
        yield made


@pytest.fixture
def store(place: Place, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return an empty store that refuses every uid but its owner's."""
    with place.squashed(request.node.name) as made:
        yield made


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this process's priority as it is. The installed program's is tested in test_maintenance_slurm."""
    monkeypatch.setattr(maintain, "be_idle", lambda: None)

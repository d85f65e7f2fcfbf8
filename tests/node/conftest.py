"""Tests on one node, as root, without Slurm: real mounts, accounts and tools."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lib.accounts import Accounts
from tests.lib.image_place import Place, Store, opened_place
from tests.lib.requirements import unavailable
from tests.unit.conftest import context, node
from warmstart.cli import maintain

__all__ = ["context", "node"]


@pytest.fixture(autouse=True)
def as_root() -> None:
    """Skip, or fail in CI, what a plain user runs."""
    if os.geteuid() != 0:
        unavailable("needs root")


@pytest.fixture(scope="session")
def accounts(capable_host: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    """Have the accounts of tests' users, for what looks them up."""
    made = Accounts(tmp_path_factory.mktemp("homes"))
    yield made
    made.close()


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
    """Keep this process's priority as it is. The installed program's is tested in slurm."""
    monkeypatch.setattr(maintain, "be_idle", lambda: None)

"""What maintenance of the store does for launchers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.node import Node
from warmstart.maintenance.store import StoreMaintenance
from warmstart.policy.compiled import Wing
from warmstart.session import Session, open_session
from warmstart.wings.launchers.places import KEY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give the launchers' directory."""
    (tmp_path / "launchers").mkdir()
    return tmp_path / "launchers"


@pytest.fixture
def session(node: Node, folder: Path) -> Iterator[Session]:
    """Return a session of maintenance under a policy that names the directory."""
    own = {KEY: {"directory": str(folder), "lock": False}}
    used = Wing("launchers", used=True, step="", early=False, end="")
    node.write(node.policy._replace(own=own, wings=(used,)))
    with open_session(node.installation, "maintain", "n1") as opened:
        yield opened


def test_links_that_a_killed_eviction_left_go(session: Session, folder: Path) -> None:
    (folder / "gone.sqsh").symlink_to(f"{session.store.path}/images/gone.sqsh")
    (folder / "theirs.sqsh").symlink_to("/nowhere/gone.sqsh")
    assert StoreMaintenance(session).all().failed == 0
    assert [path.name for path in folder.iterdir()] == ["theirs.sqsh"]

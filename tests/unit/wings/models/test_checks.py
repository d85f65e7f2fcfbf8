"""What doctor says of models: whether a copy can be shown, and has room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.policy_site import defaults, offering
from warmstart.doctor import prefixes
from warmstart.doctor.node import Node
from warmstart.host.namespaces import Mount
from warmstart.paths import Installation
from warmstart.wings.models.checks import models


@pytest.fixture(autouse=True)
def _shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "real_path", lambda path, _: path)
    monkeypatch.setattr(prefixes, "mount_of", lambda _: Mount("lustre", "/lustre"))


def found(shelf: Path, *prefixes: str, keep: str = "1B", way: str = "spank") -> list[tuple[str, str]]:
    policy = offering(defaults(), models={"prefixes": [*prefixes], "keep": keep})
    policy = policy._replace(constant_path=way, paths=policy.paths._replace(shelf=str(shelf)))
    return [(finding.status, finding.found) for finding in models(Node(Installation(str(shelf)), policy))]


@pytest.mark.parametrize(
    ("prefixes", "text"),
    [([], "the policy offers no copies of models"), (["/lustre"], "jobs may have copies of models below /lustre")],
)
def test_what_serves_is_fine(tmp_path: Path, prefixes: list[str], text: str) -> None:
    assert found(tmp_path, *prefixes) == [("ok", text)]


def test_a_node_that_shows_none_and_has_no_room(tmp_path: Path) -> None:
    """Both are said; a shelf that is not there yet lies on the disk above."""
    (way, _), (room, text) = found(tmp_path / "shelf/deep", "/lustre", keep="1048576TiB", way="link")
    assert (way, room) == ("advice", "advice")
    assert text.startswith("models.keep is 1048576TiB, and the disk of paths.shelf has")

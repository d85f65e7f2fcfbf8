"""What a store's path leads through, in real directories and links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warmstart.doctor import probe


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "real/inner/store").mkdir(parents=True)
    return tmp_path


def through(tree: Path, path: str) -> list[tuple[str, int]]:
    """Return the names and modes of what a path below `tree` leads through."""
    found = probe.above(str(tree / path))
    return [(place.path[len(str(tree)) + 1 :], place.mode) for place in found if place.path.startswith(f"{tree}/")]


def test_directories(tree: Path) -> None:
    (tree / "real").chmod(0o750)
    (tree / "real/inner").chmod(0o777)
    assert through(tree, "real/inner/store") == [("real", 0o750), ("real/inner", 0o777)]
    assert {place.uid for place in probe.above(str(tree / "real/inner/store"))} <= {0, os.getuid()}


@pytest.mark.parametrize("target", ["real", "{tree}/real", "./real/inner/..", "further"])
def test_links_are_resolved_step_by_step(tree: Path, target: str) -> None:
    """A link's own mode, 0777, is not told; the directories that it leads through are."""
    (tree / "further").symlink_to("real")
    (tree / "link").symlink_to(target.format(tree=tree))
    (tree / "real").chmod(0o700)
    found = through(tree, "link/inner/store")
    assert found[0] == ("link", 0)
    assert {("real", 0o700), ("real/inner", (tree / "real/inner").stat().st_mode & 0o7777)} <= {*found}
    assert ("real/inner/store", 0o755) not in found


def test_the_last_may_be_a_link(tree: Path) -> None:
    """Who can write above what it leads to counts, and who owns the link."""
    (tree / "store").symlink_to("real/inner/store")
    assert [path for path, _ in through(tree, "store")] == ["store", "real", "real/inner"]


def test_links_without_end(tree: Path) -> None:
    (tree / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        probe.above(str(tree / "loop/store"))

"""Trees of images on a node: who finds one, and what keeps it there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.runs import a_policy, a_record
from warmstart import record as records
from warmstart.host import files
from warmstart.host.deadline import after
from warmstart.images import unpacked
from warmstart.images.unpacked import ImageKey, Unpacked
from warmstart.paths import NodePaths

KEY = ImageKey(f"{'ab' * 32}.x86_64.oci1")


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    paths = NodePaths(str(tmp_path / "node"), "/nowhere")
    os.makedirs(f"{paths.state}/7", mode=0o700)
    records.save(paths.state, a_record())
    return paths


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    (tmp_path / f"shelf/{KEY.tree}/tree").mkdir(parents=True)
    return tmp_path / "shelf"


def taken(shelf: Path, paths: NodePaths, key: ImageKey = KEY) -> Unpacked | None:
    return unpacked.take(str(shelf), key, paths, a_record(), after(1))


def test_a_run_that_takes_a_tree_is_noted_until_its_end(shelf: Path, paths: NodePaths) -> None:
    os.utime(shelf / KEY.tree, (1, 1))
    path = shelf / KEY.tree / "tree"
    assert taken(shelf, paths) == (KEY.tree, str(path), os.getuid(), path.stat().st_gid)
    assert taken(shelf, paths)
    assert records.held(paths.state) == {KEY.tree: [7]}
    assert (shelf / KEY.tree).stat().st_mtime > 1
    assert records.load(paths.state, 7) == a_record()
    records.forget(paths.state, 7)
    assert records.held(paths.state) == {}


def test_who_takes_a_tree_waits_for_an_eviction(shelf: Path, paths: NodePaths) -> None:
    with files.opened_dir(str(shelf)) as fd:
        assert files.try_flock(fd, shared=True)
        assert taken(shelf, paths)
        assert files.try_flock(fd)
        with pytest.raises(OSError, match="still being evicted"):
            unpacked.take(str(shelf), KEY, paths, a_record(), after(0))


def test_a_node_has_a_shelf_where_the_policy_says_so(tmp_path: Path) -> None:
    policy = a_policy(tmp_path)
    assert unpacked.shelf_of(policy, "n1") == ""
    named = policy._replace(paths=policy.paths._replace(shelf="/srv/shelf"))
    assert unpacked.shelf_of(named, "n1") == "/srv/shelf/n1/images"

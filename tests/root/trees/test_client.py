"""A tree as root gets it through a process of its user's: that user's rights, and no more."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import mounts
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.trees.client import TreeClient
from warmstart.trees.stage import Stage, Staged
from warmstart.trees.walk import Bounds

USER = Identity("ws-nobody-of-this-name", 64201, 64201)


def copied(tree: Path, to: Path) -> Staged:
    """Copy a tree with the rights of the user."""
    bounds = Bounds(1 << 20, 100)
    to.mkdir(mode=0o700)
    with (
        tempfile.TemporaryFile() as records,
        TreeClient(USER, str(tree), records.fileno()) as client,
        opened_dir(str(to)) as fd,
        Stage(fd, str(tree), bounds) as stage,
    ):
        client.walk(str(tree), bounds, stage, after(30))
        return stage.result()


@pytest.fixture
def tree() -> Iterator[Path]:
    """Yield a tree of the user's, where the user can get to."""
    with tempfile.TemporaryDirectory(prefix="warmstart-tree-", dir="/var/tmp") as base:
        os.chmod(base, 0o755)
        tree = Path(base, "tree")
        for name in ("own", "private"):
            (tree / name).mkdir(parents=True)
            (tree / name / "file").write_text(name)
        os.chown(tree, USER.uid, USER.gid)
        yield tree


@pytest.mark.threat(50)
def test_what_the_user_cannot_read_is_not_in_the_copy(tree: Path, tmp_path: Path) -> None:
    """Root could, and does not."""
    (tree / "private").chmod(0o700)
    (tree / "own" / "secret").write_text("root's")
    (tree / "own" / "secret").chmod(0o600)
    staged = copied(tree, tmp_path / "copy")
    assert sorted(staged.examples) == [("own/secret", "unreadable"), ("private", "unreadable")]
    found = sorted(str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*"))
    assert found == ["own", "own/file"]


@pytest.mark.threat(50)
def test_other_file_systems_in_the_tree_are_not_entered(tree: Path, tmp_path: Path) -> None:
    """One of the user's may hang, or never end."""
    with mounts.tmpfs(tree / "own" / "mounted"):
        (tree / "own" / "mounted" / "file").write_text("x")
        staged = copied(tree, tmp_path / "copy")
    assert staged.examples == [("own/mounted", "on another mount")]


@pytest.mark.threat(50)
def test_the_process_that_reads_cannot_be_traced(tree: Path) -> None:
    """It is the user's, all ids; what is the user's in /proc is root's."""
    with TreeClient(USER, str(tree)) as client:
        (tree / "pyvenv.cfg").write_text("")
        client.look((str(tree.parent),), "", after(10))
        pid = client._worker._pid
        assert "Uid:\t64201\t64201\t64201\t64201" in Path(f"/proc/{pid}/status").read_text()
        assert os.stat(f"/proc/{pid}/mem").st_uid == 0

"""What a run shows at paths whose names users can change, such as a tree, by the SPANK plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.node.test_spank import JOB, ONCE, Node, harnesses, node, view_of
from warmstart.paths import NOTHING, Shown
from warmstart.wings.trees.current import look

__all__ = ["harnesses", "node"]  # fixtures
RUN = "7.0a1b2c3d"


def make_tree(node: Node, *, uid: int = JOB, mode: int = 0o700) -> Path:
    """Make a job's run, and a tree of the user's in a directory that only this user can enter."""
    node.write_view(*view_of(node, node.make_cache(RUN, JOB)))
    tree = node.base / "shared" / "env"
    tree.mkdir(parents=True)
    (tree / "marker").write_text("shared\n")
    for path in (tree, tree.parent):
        os.chown(path, uid, uid)
        path.chmod(mode)
    return tree


SOURCE = "mounted/tree/tree"
SAID = "warmstart: another directory is there"


def show(node: Node, path: Path | str, *, copy: bool, seen: str = NOTHING) -> None:
    """Write what the prolog writes: where the tree is, and a copy of it, if there is one."""
    if copy:
        source = node.base / "workspace" / RUN / SOURCE
        source.mkdir(parents=True)
        (source / "marker").write_text("copy\n")
        for part in (source.parent, source, source / "marker"):
            os.chown(part, JOB, JOB)
        source.parent.chmod(0o700)
    node.show(RUN, Shown("ro", "job", SOURCE if copy else NOTHING, seen, str(path), SAID))


def found(node: Node, tree: Path) -> tuple[list[str], list[str]]:
    """Run a task; return the options of the mounts on the tree, and what its marker holds."""
    lines = node.task(TREE=str(tree))
    mounts = [line.split(" ")[6] for line in lines if line.startswith("/proc/self/mountinfo") and f" {tree} " in line]
    return mounts, [line.partition(": ")[2] for line in lines if line.startswith(f"{tree}/marker: ")]


@ONCE  # valgrind does not know openat2(2)
@pytest.mark.parametrize("copy", [True, False])
def test_what_is_shown_is_at_the_trees_own_path_and_read_only(node: Node, copy: bool) -> None:
    tree = make_tree(node)
    show(node, tree, copy=copy)
    (options,), marker = found(node, tree)
    assert {"ro", "nosuid", "nodev"} <= {*options.split(",")}
    assert marker == ["copy" if copy else "shared"]


@ONCE
def test_a_group_of_the_users_is_enough(node: Node) -> None:
    tree = make_tree(node, uid=0, mode=0o750)
    for path in (tree, tree.parent):
        os.chown(path, 0, 64299)
    show(node, tree, copy=True)
    assert found(node, tree)[1] == []  # the harness has no such group for the task itself
    assert len(found(node, tree)[0]) == 1


@ONCE
@pytest.mark.threat(51)
@pytest.mark.parametrize("case", ["a link on the way", "a link at its place", "not the user's to enter", "gone"])
def test_nothing_is_mounted_elsewhere(node: Node, case: str) -> None:
    """The path leads through directories of the user's."""
    tree = make_tree(node)
    other = node.base / "other"
    (other / "env").mkdir(parents=True)
    if case == "a link on the way":
        tree.parent.rename(node.base / "moved")
        tree.parent.symlink_to(other)
    elif case == "a link at its place":
        tree.rename(node.base / "moved")
        tree.symlink_to(other)
    elif case == "gone":
        tree.rename(node.base / "moved")
    else:
        os.chown(tree.parent, 0, 0)
    show(node, tree, copy=True)
    lines = node.task(TREE=str(tree))
    assert not [line for line in lines if line.startswith("/proc/self/mountinfo") and "/env " in line]
    assert [line for line in lines if line.startswith(f"info: warmstart: cannot mount at {tree}: ")]


@ONCE
@pytest.mark.threat(51)
@pytest.mark.parametrize("case", ["another's run", "a link", "gone"])
def test_only_what_root_wrote_is_believed(node: Node, case: str) -> None:
    """The run is one of the job's user, and a source is what root has put there."""
    tree = make_tree(node)
    show(node, tree, copy=True)
    source = node.base / "workspace" / RUN / SOURCE
    if case == "another's run":
        os.chown(node.base / "workspace" / RUN / "cache", JOB + 1, JOB + 1)
    else:
        source.rename(source.with_name("moved"))
        if case == "a link":
            source.symlink_to("moved")
    assert found(node, tree) == ([], ["shared"])


@ONCE
@pytest.mark.parametrize("case", ["as it was", "renamed away", "its inode used again", "no birth known"])
def test_another_directory_at_its_path_is_no_tree_of_the_job(node: Node, case: str) -> None:
    """What else stands there since the prolog looked is shown as it is, as tasks that run see it; the job is told."""
    tree = make_tree(node)
    (tree / "pyvenv.cfg").touch()
    device, inode, birth = look(str(tree), [str(tree.parent)], "", []).identity.split(" ")
    if case == "renamed away":
        tree.rename(node.base / "moved")
        (node.base / "moved" / "marker").rename(node.base / "marker")
        tree.mkdir()
        (node.base / "marker").rename(tree / "marker")
    elif case == "its inode used again":
        birth = str(int(birth) - 1)
    elif case == "no birth known":
        birth = "0"
    show(node, tree, copy=True, seen=f"{device} {inode} {birth}")
    is_same = case in ("as it was", "no birth known")
    done = node.start(TREE=str(tree))
    assert ("copy" in done.stdout.split(f"{tree}/marker: ")[1].splitlines()[0]) is is_same
    assert (f" {tree} " in done.stdout) is is_same
    assert done.stderr == ("" if is_same else f"{SAID}\n")

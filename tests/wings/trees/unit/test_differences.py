"""What is another in a tree than in its copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from warmstart.host.files import DIRECTORY
from warmstart.wings.trees import differences
from warmstart.wings.trees.current import TreeUnusable
from warmstart.wings.trees.differences import ADDED, KIND, MODE, REMOVED, SIZE, TARGET, TIME, Differences


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree beside a copy of it, which has times in whole seconds as a squashfs has."""
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file.py").write_text("x")
    (tree / "a" / "link").symlink_to("b")
    (tree / "empty").mkdir()
    (tree / "old").write_text("before 1970")
    os.utime(tree / "old", (-7, -7))
    shutil.copytree(tree, tmp_path / "copy", symlinks=True)
    for path in (tmp_path / "copy").rglob("*"):
        if path.is_file():
            os.utime(path, (max(int(path.stat().st_mtime), 0),) * 2)
    return tree


def compared(tree: Path, most: int = 1000) -> Differences:
    """Compare a tree with its copy, as `TreeClient.compare` does."""
    copy = os.open(tree.parent / "copy", DIRECTORY)
    differences.begin(str(tree), copy, most)
    os.close(copy)
    while not (found := differences.more()).is_over:
        pass
    return found


def test_a_tree_that_is_as_it_was(tree: Path) -> None:
    """What programs write for themselves, and what no copy has, is no difference."""
    (tree / "a" / "__pycache__").mkdir()
    (tree / "a" / "__pycache__" / "file.cpython-312.pyc").write_text("x")
    (tree.parent / "copy" / "a" / "b" / "__pycache__").mkdir()
    os.mkfifo(tree / "fifo")
    assert compared(tree) == Differences(8, 0, [], is_over=True)


@pytest.mark.report
def test_what_package_managers_alone_read_is_no_difference(tree: Path) -> None:
    """A copy for many may be without it."""
    (tree / "conda-meta").mkdir()
    shutil.copytree(tree / "conda-meta", tree.parent / "copy" / "conda-meta")
    (tree / ".lock").touch()
    (tree / "conda-meta" / "one-1-0.json").touch()
    assert compared(tree).changed == 0
    (tree / "conda-meta" / ".lock.py").touch()
    assert compared(tree).examples == [("conda-meta/.lock.py", ADDED)]


def rewrite(tree: Path) -> None:
    """Write as many other bytes, later."""
    (tree / "a/b/file.py").write_text("y")
    os.utime(tree / "a/b/file.py", (2_000_000_000, 2_000_000_000))


def swap(tree: Path) -> None:
    """Put a directory in a file's place."""
    (tree / "a/b/file.py").unlink()
    (tree / "a/b/file.py").mkdir()


def relink(tree: Path) -> None:
    """Let a link lead elsewhere."""
    (tree / "a/link").unlink()
    (tree / "a/link").symlink_to("../a/b")


CHANGES: dict[str, tuple[Callable[[Path], object], tuple[str, str]]] = {
    "edited": (lambda tree: (tree / "a/b/file.py").write_text("xy"), ("a/b/file.py", SIZE)),
    "rewritten": (rewrite, ("a/b/file.py", TIME)),
    "chmod": (lambda tree: (tree / "a/b/file.py").chmod(0o755), ("a/b/file.py", MODE)),
    "chmod of a directory": (lambda tree: (tree / "empty").chmod(0o700), ("empty", MODE)),
    "added": (lambda tree: (tree / "a/b/\n").write_text(""), ("a/b/\\n", ADDED)),
    "an added directory": (lambda tree: (tree / "empty/new").mkdir(), ("empty/new", ADDED)),
    "an added link": (lambda tree: (tree / "empty/new").symlink_to("x"), ("empty/new", ADDED)),
    "removed": (lambda tree: (tree / "a/b/file.py").unlink(), ("a/b/file.py", REMOVED)),
    "a removed directory": (lambda tree: (tree / "empty").rmdir(), ("empty", REMOVED)),
    "another kind": (swap, ("a/b/file.py", KIND)),
    "another target": (relink, ("a/link", TARGET)),
}


@pytest.mark.threat(57)
@pytest.mark.parametrize("case", CHANGES)
def test_what_no_marker_shows_is_found(tree: Path, case: str) -> None:
    """Each change of a name, kind, size, time, mode or target."""
    change, example = CHANGES[case]
    change(tree)
    found = compared(tree)
    assert (found.changed, found.examples) == (1, [example])


@pytest.mark.threat(58)
def test_a_comparison_has_bounds(tree: Path) -> None:
    """Of names, and of what it tells."""
    for number in range(100):
        (tree / "empty" / str(number)).touch()
    found = compared(tree)
    assert (found.changed, len(found.examples)) == (100, differences.MOST_EXAMPLES)
    assert compared(tree, most=50).names == 50


@pytest.mark.threat(58)
def test_a_comparison_keeps_its_pace(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for what it is ahead of its rate."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("warmstart.wings.trees.differences.time.monotonic", lambda: now[0])
    monkeypatch.setattr("warmstart.wings.trees.differences.time.sleep", sleep)
    for number in range(1000):
        (tree / "empty" / str(number)).touch()
    compared(tree, most=5000)
    assert now[0] == pytest.approx(1000 / differences.RATE, rel=0.1)


def test_a_tree_that_is_gone_cannot_be_compared(tree: Path) -> None:
    """Its copies go when nobody has used them for long."""
    shutil.rmtree(tree)
    with pytest.raises(TreeUnusable):
        compared(tree)

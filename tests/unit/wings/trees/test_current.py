"""Whether a tree has changed, by what package managers leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warmstart.policy.shared import SharedPath
from warmstart.wings.trees import current
from warmstart.wings.trees.current import TreeUnusable

PACKAGES = "lib/python3.12/site-packages"
PYPY = "envs/train/lib/pypy3.11/site-packages"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return an environment that root does not own."""
    tree = tmp_path / "trees" / "env"
    make(tree, f"{PACKAGES}/ pyvenv.cfg")
    if os.geteuid() == 0:
        os.chown(tree, 64201, 64201)
    return tree


def make(tree: Path, names: str) -> None:
    """Make directories, whose names end in a slash, and add a line to files; all but these are of long ago."""
    for path in tree.rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)
    for name in names.split():
        path = tree / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            with path.open("a") as file:
                file.write("line\n")


def stamp(tree: Path, marker: str = "") -> str:
    return current.look(str(tree), [str(tree.parent)], marker, []).stamp


@pytest.mark.parametrize(
    ("before", "change", "is_seen"),
    [
        ("", f"{PACKAGES}/one/", True),
        (f"{PACKAGES}/one/", f"{PACKAGES}/one/__pycache__/", False),  # as programs write it
        # conda 26.7: an upgrade writes into the directories of the old version, `conda env config vars` in place.
        ("", "conda-meta/history", True),
        ("conda-meta/history", "conda-meta/history", True),
        ("conda-meta/history", "conda-meta/one-1-0.json", True),
        ("conda-meta/state", "conda-meta/state", True),
        # Who names the directory of conda itself may start Python from any of its environments.
        ("conda-meta/ envs/train/conda-meta/", "envs/train/conda-meta/one-1-0.json", True),
        (f"conda-meta/ {PYPY}/", f"{PYPY}/one/", True),
    ],
)
def test_what_changes_an_environment_is_seen(tree: Path, before: str, change: str, is_seen: bool) -> None:
    make(tree, before)
    make(tree, "")
    seen = stamp(tree)
    make(tree, change)
    assert (stamp(tree) != seen) is is_seen


def test_a_tree_of_too_many_environments_is_none(tree: Path) -> None:
    make(tree, "conda-meta/ " + " ".join(f"envs/{number}/" for number in range(65)))
    with pytest.raises(TreeUnusable, match="65 environments; name one"):
        stamp(tree)


@pytest.mark.report
def test_a_file_that_came_and_went_in_the_top_is_no_change(tree: Path) -> None:
    """Programs test there whether they may write. What is in the top counts, as who may read it."""
    before = stamp(tree)
    (tree / "probe").touch()
    during = stamp(tree)
    (tree / "probe").unlink()
    os.utime(tree, (2_000_000_000, 2_000_000_000))
    assert before == stamp(tree) != during
    os.utime(tree / "pyvenv.cfg")  # as the page says after an edit in place
    assert stamp(tree) != before


@pytest.mark.report
def test_a_top_with_more_names_than_are_listed_counts_by_its_time(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "_MOST_IN_TOP", 1)
    before = stamp(tree)
    os.utime(tree, (2_000_000_000, 2_000_000_000))
    assert stamp(tree) != before


def test_packages_behind_a_link_are_looked_at(tree: Path) -> None:
    """The link itself stays as it is when something is installed. One that leads to itself leads nowhere."""
    (tree / PACKAGES).rmdir()
    (tree / PACKAGES).symlink_to("../../packages")
    (tree / "conda-meta").symlink_to("conda-meta")
    (tree / "lib64").symlink_to("lib")
    make(tree, "packages/")
    make(tree, "")
    before = stamp(tree)
    make(tree, "packages/one/")
    assert stamp(tree) != before


def test_a_file_that_the_job_names_is_looked_at_in_any_directory(tree: Path) -> None:
    (tree / "pyvenv.cfg").unlink()
    (tree / PACKAGES).rmdir()
    with pytest.raises(TreeUnusable, match="name a file"):
        stamp(tree)
    with pytest.raises(TreeUnusable, match="it has no version"):
        stamp(tree, "version")
    (tree / "version").write_text("1")
    before = stamp(tree, "version")
    (tree / "version").write_text("11")
    assert stamp(tree, "version") != before


@pytest.mark.threat(54)
def test_of_a_tree_of_many_no_file_counts_that_a_job_names(tree: Path) -> None:
    """It could have a copy made for each of its files."""
    shared = SharedPath(f"{tree.parent}/*", (), "site", "everyone")
    prefixes = [str(tree.parent)]
    seen = current.look(str(tree), prefixes, "pyvenv.cfg", [shared])
    assert (seen.marker, seen.stamp) == ("", stamp(tree))
    tools = tree.parent / "tools"
    (tools / "bin").mkdir(parents=True)
    with pytest.raises(TreeUnusable, match="no environment"):
        stamp(tools)
    assert current.look(str(tools), prefixes, "", [shared]).path == str(tools)


def test_a_link_to_a_tree_is_the_tree_at_its_path_without_links(tree: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tree)
    assert current.look(str(link), [str(tree.parent)], "", []).path == str(tree)


@pytest.mark.threat(51)
def test_what_is_not_offered_is_no_tree(tree: Path) -> None:
    """A link out of the prefix, the prefix itself, a file, and what is missing."""
    out = tree.parent / "out"
    out.symlink_to("/etc")
    for name in (out, tree.parent, tree / "pyvenv.cfg", tree / "gone"):
        with pytest.raises(TreeUnusable):
            current.look(str(name), [str(tree.parent)], "", [])


def test_who_may_read_it_is_part_of_what_it_looks_like(tree: Path) -> None:
    """A copy for many is as readable as its top was, so another mode makes another copy."""
    before = stamp(tree)
    tree.chmod(0o750)
    assert stamp(tree) != before

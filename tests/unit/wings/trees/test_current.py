"""Whether a tree has changed, by what package managers leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warmstart.policy.shared import SharedPath
from warmstart.wings.trees import current
from warmstart.wings.trees.current import TreeUnusable


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return an environment that root does not own."""
    packages = tmp_path / "trees" / "env" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "trees" / "env" / "pyvenv.cfg").write_text("home = /usr\n")
    if os.geteuid() == 0:
        os.chown(tmp_path / "trees" / "env", 64201, 64201)
    return tmp_path / "trees" / "env"


def stamp(tree: Path, marker: str = "") -> str:
    """Return what a tree looks like."""
    return current.look(str(tree), [str(tree.parent)], marker, []).stamp


def test_files_that_programs_write_below_packages_are_no_change(tree: Path) -> None:
    before = stamp(tree)
    packages = tree / "lib" / "python3.12" / "site-packages"
    (packages / "one").mkdir()
    after = stamp(tree)
    (packages / "one" / "__pycache__").mkdir()
    assert before != after == stamp(tree)


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


def test_environments_below_condas_own_are_looked_at(tree: Path) -> None:
    """Who names the directory of conda itself may start Python from any of them."""
    (tree / "conda-meta").mkdir()
    below = tree / "envs" / "train"
    (below / "conda-meta").mkdir(parents=True)
    (below / "lib" / "pypy3.11" / "site-packages").mkdir(parents=True)
    seen = [stamp(tree)]
    (below / "conda-meta" / "one-1-0.json").write_text("{}")
    seen.append(stamp(tree))
    (below / "lib" / "pypy3.11" / "site-packages" / "one").mkdir()
    seen.append(stamp(tree))
    assert len({*seen}) == 3
    for number in range(64):
        (tree / "envs" / f"{number}").mkdir()
    with pytest.raises(TreeUnusable, match="65 environments; name one"):
        stamp(tree)


def test_packages_behind_a_link_are_looked_at(tree: Path) -> None:
    """The link itself stays as it is when something is installed. One that leads to itself leads nowhere."""
    packages = tree / "lib" / "python3.12" / "site-packages"
    packages.rmdir()
    (tree / "packages").mkdir()
    packages.symlink_to("../../packages")
    (tree / "conda-meta").symlink_to("conda-meta")
    (tree / "lib64").symlink_to("lib")
    before = stamp(tree)
    (tree / "packages" / "one").mkdir()
    assert stamp(tree) != before


def test_what_conda_does_is_seen(tree: Path) -> None:
    """Seen with conda 26.7: a line in the history, and a new description of each package, also of the same one again.

    An upgrade writes into the directories of the old version: `site-packages` stays as it was. `conda env config vars`
    writes its file in place, and `conda activate` reads it.
    """
    seen = [stamp(tree)]
    meta = tree / "conda-meta"
    meta.mkdir()
    (meta / "history").write_text("==> 2026 <==\n")
    seen.append(stamp(tree))
    with (meta / "history").open("a") as history:
        history.write("+one-1\n")
    seen.append(stamp(tree))
    (meta / "one-1-0.json").write_text("{}")
    seen.append(stamp(tree))
    (meta / "one-1-0.json").unlink()
    (meta / "one-1-0.json").write_text("{}")
    seen.append(stamp(tree))
    for variables in ("{}", '{"A": "1"}'):
        (meta / "state").write_text(variables)
        seen.append(stamp(tree))
    assert len({*seen}) == 7


def test_a_file_that_the_job_names_is_looked_at_in_any_directory(tree: Path) -> None:
    (tree / "pyvenv.cfg").unlink()
    (tree / "lib" / "python3.12" / "site-packages").rmdir()
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

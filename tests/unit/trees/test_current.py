"""Whether a tree has changed, by what package managers leave behind."""

from __future__ import annotations

import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from warmstart.policy.match import GrantedTree
from warmstart.trees import current
from warmstart.trees.current import TreeUnusable


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


def test_a_tree_stays_the_same(tree: Path) -> None:
    """Files that programs write below packages are no change of the environment."""
    before = stamp(tree)
    packages = tree / "lib" / "python3.12" / "site-packages"
    (packages / "one").mkdir()
    after = stamp(tree)
    (packages / "one" / "__pycache__").mkdir()
    assert before != after == stamp(tree)


def wheel(directory: Path, version: str) -> str:
    """Make a wheel with one module."""
    path = directory / f"one-{version}-py3-none-any.whl"
    info = f"one-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one/__init__.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: one\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"one/__init__.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return str(path)


@pytest.mark.sweep
def test_what_pip_does_is_seen(tmp_path: Path) -> None:
    """Install, upgrade, the same again, and remove: each is another tree."""
    tree = tmp_path / "trees" / "env"
    venv.create(tree, with_pip=True)
    if os.geteuid() == 0:
        os.chown(tree, 64201, 64201)
    pip = [str(tree / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    local = ["install", "--no-index", "--no-deps"]
    seen = [stamp(tree)]
    for arguments in (
        [*local, wheel(tmp_path, "1")],
        [*local, "--upgrade", wheel(tmp_path, "2")],
        [*local, "--force-reinstall", wheel(tmp_path, "2")],
        ["uninstall", "--yes", "one"],
    ):
        subprocess.run([*pip, *arguments], check=True)
        seen.append(stamp(tree))
    assert len({*seen}) == 5


def test_what_conda_does_is_seen(tree: Path) -> None:
    """It writes its history at each change, and the description of each package beside it."""
    seen = [stamp(tree)]
    (tree / "conda-meta").mkdir()
    (tree / "conda-meta" / "history").write_text("==> 2026 <==\n")
    seen.append(stamp(tree))
    with (tree / "conda-meta" / "history").open("a") as history:
        history.write("+one-1\n")
    seen.append(stamp(tree))
    (tree / "conda-meta" / "one-1.json").write_text("{}")
    seen.append(stamp(tree))
    assert len({*seen}) == 4


def test_a_file_that_the_job_names_is_looked_at(tree: Path) -> None:
    """Also in a tree that is no environment."""
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
def test_of_a_tree_of_many_the_rule_says_what_shows_a_change(tree: Path) -> None:
    """Not the job, which could have a copy made for each of its files."""
    shared = GrantedTree(f"{tree.parent}/*", (), "site", "", "everyone")
    prefixes = [str(tree.parent)]
    seen = current.look(str(tree), prefixes, "pyvenv.cfg", [shared])
    assert (seen.marker, seen.stamp) == ("", stamp(tree))
    seen = current.look(str(tree), prefixes, "", [shared._replace(marker="pyvenv.cfg")])
    assert (seen.marker, seen.stamp) == ("pyvenv.cfg", stamp(tree, "pyvenv.cfg"))


def test_a_link_to_a_tree_is_the_tree(tree: Path, tmp_path: Path) -> None:
    """It is named by its path without links, and must be below a prefix itself."""
    link = tmp_path / "link"
    link.symlink_to(tree)
    assert current.look(str(link), [str(tree.parent)], "", []).path == str(tree)


@pytest.mark.threat(51)
def test_what_is_not_offered_is_no_tree(tree: Path, tmp_path: Path) -> None:
    """A link out of the prefix, the prefix itself, a file, and what is missing."""
    out = tree.parent / "out"
    out.symlink_to("/etc")
    for name in (out, tree.parent, tree / "pyvenv.cfg", tree / "gone"):
        with pytest.raises(TreeUnusable):
            current.look(str(name), [str(tree.parent)], "", [])
    assert tmp_path.exists()


def test_who_may_read_it_is_part_of_what_it_looks_like(tree: Path) -> None:
    """A copy for many is as readable as its top was, so another mode makes another copy."""
    before = stamp(tree)
    tree.chmod(0o750)
    assert stamp(tree) != before

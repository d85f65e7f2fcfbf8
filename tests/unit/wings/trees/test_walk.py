"""A tree as its user reads it, and root's copy of it: the two ends of the same records."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from pathlib import Path

import pytest

from warmstart.host import untrusted
from warmstart.host.files import opened_dir
from warmstart.host.untrusted import TurnedAway
from warmstart.wings.trees import walk
from warmstart.wings.trees.current import TreeUnusable
from warmstart.wings.trees.stage import Stage, Staged
from warmstart.wings.trees.walk import Bounds, TreeRefused

MANY = Bounds(1 << 30, 1000)


def copied(tree: Path, to: Path, bounds: Bounds = MANY, owners: list[int] | None = None) -> Staged:
    """Copy a tree as `TreeClient.walk` does."""
    to.mkdir()
    with (
        tempfile.TemporaryFile(buffering=0) as records,
        open(os.devnull, "rb") as go_on,
        opened_dir(str(to)) as fd,
        Stage(fd, str(tree), bounds) as stage,
    ):
        for has_more in walk.walk(str(tree), bounds, owners, records.fileno(), go_on.fileno()):
            assert stage.take(records.fileno()) is not has_more
        return stage.result()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


def seen(top: Path) -> dict[str, tuple[object, ...]]:
    """Return what lies below a directory: kind and mode, whole seconds of the mtime, content."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(top))] = (status.st_mode, int(status.st_mtime), content)
    return found


def test_a_copy_has_everything(tree: Path, tmp_path: Path) -> None:
    """Links as they are, absolute ones too; empty and hidden files, programs, hard links, odd names, old times."""
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "__init__.py").write_text("")
    (tree / "a" / ".hidden").write_bytes(b"x" * (walk.PIECE + 1))
    (tree / "a" / "run").write_text("#!/bin/sh\n")
    (tree / "a" / "run").chmod(0o751)
    os.link(tree / "a" / "run", tree / "a" / "same")
    (tree / "absolute").symlink_to("/etc/passwd")
    (tree / "nowhere").symlink_to("../../gone")
    (tree / os.fsdecode(b"\xff\n")).write_text("odd")
    os.utime(tree / "a" / "run", (1_000_000_000, 1_000_000_000))
    os.utime(tree / "a" / "b", (1_000_000_001, 1_000_000_001))
    staged = copied(tree, tmp_path / "copy")
    assert seen(tmp_path / "copy") == seen(tree)
    assert (staged.files, staged.left_out) == (9, 0)


def test_what_a_copy_cannot_have_of_a_file_is_told(tree: Path, tmp_path: Path) -> None:
    """Squashfs begins in 1970, and copies have no attributes; the file itself is there."""
    for name in ("old", "marked", "plain"):
        (tree / name).write_text(name)
    os.utime(tree / "old", (-1, -1))
    os.setxattr(tree / "marked", "user.checksum", b"1")
    staged = copied(tree, tmp_path / "copy")
    assert sorted(staged.examples) == [("marked", "extended attributes"), ("old", "time before 1970 or after 2106")]
    assert (staged.left_out, staged.files) == (2, 3)
    assert (tmp_path / "copy" / "old").read_text() == "old"


def test_a_directory_that_cannot_be_listed_but_entered_is_refused(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs open what they know to be in it, and would not find it in the copy."""
    (tree / "hidden").mkdir()

    def unlistable(*_: object) -> int:
        raise TurnedAway(untrusted.UNREADABLE) from PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(walk, "open_directory", unlistable)
    with pytest.raises(TreeUnusable, match="'hidden': you may enter it, but not list it"):
        copied(tree, tmp_path / "copy")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    staged = copied(tree, tmp_path / "second")
    assert staged.examples == [("hidden", "unreadable")]


@pytest.mark.threat(50)
@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (untrusted.UNREADABLE, errno.EACCES),
        (untrusted.UNREADABLE, errno.EIO),
        (untrusted.UNREADABLE, errno.ESTALE),
        (untrusted.GONE, errno.ENOENT),
        (untrusted.LINK, 0),
    ],
)
def test_only_what_the_user_may_not_read_is_left_out(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, error: int
) -> None:
    """What goes, is swapped, or cannot be read now would be missing from a copy that is shown for months."""
    (tree / "file").write_text("x")

    def turn_away(*_: object) -> int:
        raise untrusted.TurnedAway(reason) from (OSError(error, os.strerror(error)) if error else None)

    monkeypatch.setattr(walk, "open_file", turn_away)
    if error == errno.EACCES:
        assert copied(tree, tmp_path / "copy").examples == [("file", reason)]
    else:
        with pytest.raises(TreeUnusable, match="'file' c"):
            copied(tree, tmp_path / "copy")


@pytest.mark.threat(50)
def test_a_directory_that_changes_while_it_is_read_is_no_copy(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that was moved may be missing from the copy, or be there twice."""
    directory = tree / "directory"
    directory.mkdir()
    (directory / "file").write_text("x")

    def opening(name: str, parent: int, mount: str, owners: None) -> int:
        (directory / "new").touch()
        return untrusted.open_file(name, parent, mount, owners)

    monkeypatch.setattr(walk, "open_file", opening)
    with pytest.raises(TreeUnusable, match="directory"):
        copied(tree, tmp_path / "copy")


@pytest.fixture
def open_tree(tree: Path) -> Path:
    """Return a tree that everybody may read, and its owner alone may write."""
    (tree / "lib").mkdir()
    (tree / "lib" / "one.py").write_text("x")
    (tree / "run").write_text("x")
    (tree / "link").symlink_to("/etc/hostname")
    for path, mode in {"": 0o755, "lib": 0o755, "lib/one.py": 0o644, "run": 0o755}.items():
        (tree / path).chmod(mode)
    return tree


def test_a_tree_that_is_everybodys_is_copied(open_tree: Path, tmp_path: Path) -> None:
    assert copied(open_tree, tmp_path / "copy", owners=[os.getuid()]).left_out == 0
    assert seen(tmp_path / "copy") == seen(open_tree)


@pytest.mark.threat(54)
@pytest.mark.parametrize(
    ("path", "mode", "problem"),
    [
        ("", 0o775, "its top: others"),
        ("", 0o705, "its top: not all"),
        ("lib", 0o1777, "lib: others"),
        ("lib", 0o711, "lib: not all"),
        ("lib/one.py", 0o646, "lib/one.py: others"),
        ("lib/one.py", 0o664, "lib/one.py: others"),
        ("lib/one.py", 0o640, "lib/one.py: not all"),
        ("lib/one.py", 0o604, "lib/one.py: not all"),
        ("run", 0o700, "run: not all"),
    ],
)
def test_one_file_is_enough_against_a_copy_for_many(
    open_tree: Path, tmp_path: Path, path: str, mode: int, problem: str
) -> None:
    """Who can write it could have put anything there; and whoever sees the copy must be able to read the tree."""
    (open_tree / path).chmod(mode)
    with pytest.raises(TreeRefused, match=problem):
        copied(open_tree, tmp_path / "copy", owners=[os.getuid()])


@pytest.mark.threat(54)
def test_a_copy_for_many_is_whole(open_tree: Path, tmp_path: Path) -> None:
    os.mkfifo(open_tree / "lib" / "fifo")
    with pytest.raises(TreeRefused, match="lib/fifo: neither file nor directory; so no copy"):
        copied(open_tree, tmp_path / "copy", owners=[os.getuid()])


@pytest.mark.report
@pytest.mark.threat(54)
@pytest.mark.parametrize(
    ("own", "mode"),
    [(".lock", 0o666), (".lock", 0o777), ("conda-meta/one-1-0.json", 0o600), ("envs/a/conda-meta/one-1-0.json", 0o640)],
)
def test_what_package_managers_alone_read_keeps_no_tree_from_being_shared(
    open_tree: Path, tmp_path: Path, own: str, mode: int
) -> None:
    """The lock of uv, what pixi knows: a copy for many is without them, and only where that is needed.

    Under another name, and as a directory, they are as any other file.
    """
    (open_tree / own).parent.mkdir(parents=True, exist_ok=True)
    for directory in (open_tree / own).parents:
        if directory != open_tree and directory.is_relative_to(open_tree):
            directory.chmod(0o755)
    (open_tree / own).write_text("of others")
    (open_tree / own).chmod(0o644)
    assert copied(open_tree, tmp_path / "copy", owners=[os.getuid()]).left_out == 0
    assert (tmp_path / "copy" / own).exists()
    (open_tree / own).chmod(mode)
    assert copied(open_tree, tmp_path / "without", owners=[os.getuid()]).left_out == 0
    assert not (tmp_path / "without" / own).exists()
    assert (tmp_path / "without" / own).parent.exists()
    copied(open_tree, tmp_path / "own")
    assert (tmp_path / "own" / own).read_text() == "of others"
    (open_tree / own).rename(open_tree / f"{own}.py")
    with pytest.raises(TreeRefused):
        copied(open_tree, tmp_path / "other", owners=[os.getuid()])
    (open_tree / f"{own}.py").unlink()
    (open_tree / own).mkdir(mode)
    (open_tree / own).chmod(mode)
    with pytest.raises(TreeRefused):
        copied(open_tree, tmp_path / "directory", owners=[os.getuid()])


@pytest.mark.report
def test_links_that_lead_out_of_a_tree_are_told(tree: Path, tmp_path: Path) -> None:
    """What they lead to is in no copy: uv with UV_LINK_MODE=symlink, views of spack. A few are in each environment."""
    (tree / "lib" / "one").mkdir(parents=True)
    for number in range(walk.FEW_LINKS):
        (tree / "lib" / f"{number}.py").symlink_to(f"/archive/{number}.py")
    for number in range(100):
        (tree / "lib" / "one" / f"{number}.py").symlink_to(f"../{number}.py")
        (tree / "lib" / "one" / f"{number}.so").symlink_to(tree / "lib" / f"{number}.so")
    (tree / "lib" / "one" / "up").symlink_to("../../lib")
    assert copied(tree, tmp_path / "few").left_out == 0
    (tree / "lib" / "one" / "last").symlink_to("../../../archive/last")
    staged = copied(tree, tmp_path / "many")
    assert staged.left_out == walk.FEW_LINKS + 1
    assert {reason for _, reason in staged.examples} == {"a link that leads out of the tree"}
    assert seen(tmp_path / "many") == seen(tree)


@pytest.mark.threat(54)
def test_a_link_on_the_way_leads_to_no_other_tree(open_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(tmp_path)
    with pytest.raises(TreeUnusable, match="has become another's"):
        copied(tmp_path / "way" / "tree", tmp_path / "refused")
    copied(open_tree, tmp_path / "copy")


def name(text: bytes) -> bytes:
    return struct.pack("<H", len(text)) + text


DIRECTORY = walk.ATTRIBUTES.pack(0o755, 0, 0)
FILE = walk.ATTRIBUTES.pack(0o644, 0, 4)
HOSTILE = {
    "a path": walk.DIRECTORY + name(b"a/b") + DIRECTORY,
    "the parent": walk.DIRECTORY + name(b"..") + DIRECTORY,
    "no name": walk.FILE + name(b"") + FILE,
    "a NUL": walk.FILE + name(b"a\0b") + FILE,
    "out of the tree": walk.UP,
    "an end in a directory": walk.DIRECTORY + name(b"a") + DIRECTORY + walk.END,
    "an end in a file": walk.FILE + name(b"a") + FILE + walk.END,
    "bytes of no file": walk.BYTES + struct.pack("<I", 1) + b"x",
    "more bytes than the file": walk.FILE + name(b"a") + FILE + walk.BYTES + struct.pack("<I", 5) + b"12345",
    "a long piece": walk.FILE + name(b"a") + FILE + walk.BYTES + struct.pack("<I", 1 << 30),
    "half a record": walk.FILE + name(b"a") + FILE[:3],
    "an empty link": walk.LINK + name(b"a") + DIRECTORY + name(b""),
    "an unknown kind": b"?",
}


@pytest.mark.threat(50)
@pytest.mark.parametrize("case", HOSTILE)
def test_records_are_not_believed(tmp_path: Path, case: str) -> None:
    """Whatever a process of the user's writes, nothing is made outside of the stage."""
    (tmp_path / "copy").mkdir()
    with (
        tempfile.TemporaryFile(buffering=0) as records,
        opened_dir(str(tmp_path / "copy")) as fd,
        Stage(fd, "/tree", MANY) as stage,
    ):
        records.write(HOSTILE[case])
        with pytest.raises(TreeUnusable):
            stage.take(records.fileno())
    assert os.listdir(tmp_path) == ["copy"]

"""A tree as root gets it through a process of its user's: that user's rights, and no more."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.requirements import unavailable
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.policy.keys import User
from warmstart.policy.shared import SharedPath
from warmstart.wings.trees.client import TreeClient
from warmstart.wings.trees.current import TreeUnusable
from warmstart.wings.trees.stage import Stage, Staged
from warmstart.wings.trees.walk import Bounds, TreeRefused

USER = Identity("ws-nobody-of-this-name", 64201, 64201)
OTHER = 64202  # who owns a tree that many share
GROUP = 64299  # one that nobody is in
NOBODY = 0xFFFFFFFF  # of an entry of an access control list that names nobody


def copied(tree: Path, to: Path, owners: list[int] | None = None) -> Staged:
    bounds = Bounds(1 << 20, 100)
    to.mkdir(mode=0o700)
    with (
        tempfile.TemporaryFile() as records,
        opened_dir(str(to)) as fd,
        Stage(fd, str(tree), bounds) as stage,
    ):
        TreeClient(USER, str(tree), records.fileno()).walk(str(tree), bounds, stage, after(30), owners)
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
    (tree / "private").chmod(0o700)
    (tree / "own" / "secret").write_text("root's")
    (tree / "own" / "secret").chmod(0o600)
    staged = copied(tree, tmp_path / "copy")
    assert sorted(staged.examples) == [("own/secret", "unreadable"), ("private", "unreadable")]
    found = sorted(str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*"))
    assert found == ["own", "own/file"]


@pytest.mark.report
def test_a_group_that_the_node_does_not_know_is_named(tree: Path, tmp_path: Path) -> None:
    """With nss_slurm the job's credential alone has it: the job could read what its copy lacks, and what says so."""
    (tree / "own" / "secret").write_text("the group's")
    for path in (tree / "private", tree / "own" / "secret"):
        os.chown(path, 0, GROUP)
        path.chmod(0o750)
    why = f"this node does not know the user as a member of group {GROUP}"
    staged = copied(tree, tmp_path / "copy")
    assert sorted(staged.examples) == [(name, f"unreadable; {why}") for name in ("own/secret", "private")]
    (tree / "pyvenv.cfg").touch()
    client = TreeClient(USER, str(tree))
    with pytest.raises(TreeUnusable, match=f"it has no private/file; {why}"):
        client.look((str(tree.parent),), "private/file", after(30))
    with pytest.raises(TreeUnusable, match=r"it has no own/private$"):
        client.look((str(tree.parent),), "own/private", after(30))


def test_what_the_user_cannot_read_is_not_looked_at(tree: Path) -> None:
    (tree / "pyvenv.cfg").touch()
    prefixes = (str(tree.parent),)
    client = TreeClient(USER, str(tree))
    packages = tree / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    tree.joinpath("lib", "python3.12").chmod(0o700)
    unreadable = client.look(prefixes, "", after(30))
    tree.joinpath("lib", "python3.12").chmod(0o755)
    assert client.look(prefixes, "", after(30)).stamp != unreadable.stamp


@pytest.mark.threat(50)
def test_the_process_that_reads_cannot_be_traced(tree: Path) -> None:
    """It is the user's, all ids; what is the user's in /proc is root's."""
    with TreeClient(USER, str(tree))._worker.begin(after(10), own_pid) as answer:
        pid = answer(after(10))
        assert "Uid:\t64201\t64201\t64201\t64201" in Path(f"/proc/{pid}/status").read_text()
        assert os.stat(f"/proc/{pid}/mem").st_uid == 0


def own_pid() -> int:
    return os.getpid()


@pytest.mark.threat(51)
def test_what_root_owns_is_a_tree_only_if_a_rule_says_so(tree: Path) -> None:
    """Programs with more rights may read it, and must not find an older version there."""
    (tree / "pyvenv.cfg").write_text("")
    os.chown(tree, 0, 0)
    below = str(tree.parent)
    owned = SharedPath(f"{below}/*", (User("root", 0),), "site", "everyone")
    client = TreeClient(USER, str(tree))
    for shared in (
        (),
        (owned._replace(owners=(User("ws-other", OTHER),)),),
        (owned._replace(path=f"{below}/*/*"),),
    ):
        with pytest.raises(TreeUnusable, match="belongs to root"):
            client.look((below,), "", after(10), shared)
    assert client.look((below,), "", after(10), (owned,)).owner == 0


@pytest.fixture
def shared(tree: Path) -> Path:
    """Return a tree of another account's that everybody may read."""
    for path in (tree, *tree.rglob("*")):
        os.chown(path, OTHER, OTHER)
        path.chmod(0o755)
    return tree


def test_a_tree_of_another_account_is_copied_for_many(shared: Path, tmp_path: Path) -> None:
    os.chown(shared / "own" / "file", 0, 0)
    assert copied(shared, tmp_path / "copy", [OTHER]).files == 4


@pytest.mark.threat(54)
@pytest.mark.parametrize("planted", ["own/file", "own", "", "own/link"])
def test_a_file_of_a_stranger_is_enough_against_a_copy_for_many(shared: Path, tmp_path: Path, planted: str) -> None:
    """Wherever it is: its owner could have written anything into it."""
    (shared / "own" / "link").symlink_to("file")
    os.chown(shared / "own" / "link", OTHER, OTHER, follow_symlinks=False)
    os.chown(shared / planted, USER.uid, USER.gid, follow_symlinks=False)
    with pytest.raises(TreeRefused, match=f"{planted or 'its top'}: it belongs to uid {USER.uid}"):
        copied(shared, tmp_path / "copy", [OTHER])


@pytest.mark.threat(55)
@pytest.mark.parametrize("unreadable", ["own/file", "own"])
def test_what_the_user_cannot_read_is_shared_with_nobody(shared: Path, tmp_path: Path, unreadable: str) -> None:
    """Not even where the mode says that others may: there is a rule against this user."""
    (shared / unreadable).chmod(0o700)
    with pytest.raises(TreeRefused, match=f"{unreadable}: unreadable; so no copy is made of it"):
        copied(shared, tmp_path / "copy", [OTHER])


@pytest.mark.report
@pytest.mark.threat(55)
def test_pixis_records_keep_no_tree_from_being_shared(shared: Path, tmp_path: Path) -> None:
    """Its library writes them for their owner alone, so the user whose job packs cannot read them."""
    (shared / "conda-meta").mkdir()
    (shared / "conda-meta" / "one-1-0.json").write_text("{}")
    for path, mode in ((shared / "conda-meta", 0o755), (shared / "conda-meta" / "one-1-0.json", 0o600)):
        os.chown(path, OTHER, OTHER)
        path.chmod(mode)
    staged = copied(shared, tmp_path / "copy", [OTHER])
    assert (staged.files, staged.left_out) == (5, 0)
    assert not list((tmp_path / "copy" / "conda-meta").iterdir())


@pytest.mark.threat(54, 55)
def test_what_another_group_may_read_is_shared_with_nobody(shared: Path, tmp_path: Path) -> None:
    """A user of that group asks; who is not in it could read the copy."""
    os.chown(shared / "own" / "file", OTHER, USER.gid)
    (shared / "own" / "file").chmod(0o640)
    with pytest.raises(TreeRefused, match="own/file: not all who may read the tree may read it"):
        copied(shared, tmp_path / "copy", [OTHER])
    for path in (shared, *shared.rglob("*")):  # where the tree is that group's, nobody else is shown its copy
        os.chown(path, OTHER, USER.gid)
        path.chmod(path.stat().st_mode & 0o770)
    assert copied(shared, tmp_path / "own", [OTHER]).files == 4
    os.chown(shared / "own" / "file", OTHER, GROUP)
    with pytest.raises(TreeRefused, match="own/file: unreadable"):
        copied(shared, tmp_path / "other", [OTHER])


@pytest.mark.threat(55)
@pytest.mark.parametrize("listed", ["own/file", "own", ""])
def test_an_access_control_list_is_enough_against_a_copy_for_many(shared: Path, tmp_path: Path, listed: str) -> None:
    """It can let one user write, or keep one from reading, and the mode says neither."""
    entries = [(0x01, 7, NOBODY), (0x02, 7, USER.uid), (0x04, 5, NOBODY), (0x10, 5, NOBODY), (0x20, 5, NOBODY)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(shared / listed, "system.posix_acl_access", acl)
    except OSError as error:
        unavailable(f"this file system has no access control lists: {error}")
    assert not (shared / listed).stat().st_mode & 0o022
    with pytest.raises(TreeRefused, match=f"{listed or 'its top'}: it has an access control list"):
        copied(shared, tmp_path / "copy", [OTHER])

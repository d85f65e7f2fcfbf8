"""Trees that a hostile user has packed: whatever is in one, others' packs go on, and nothing is left behind.

Each test asks for a hostile tree of one user and for an ordinary one of another, and runs the program that packs once.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.lib import mounts, odd_files
from tests.lib.processes import wait_until
from tests.lib.wings.trees.sites import ALICE, BOB, TreeSite, a_tree_site
from warmstart.host import process, space
from warmstart.wings.trees import client, packing, requests, walk
from warmstart.wings.trees.offered import directory
from warmstart.wings.trees.stage import Stage

pytestmark = [pytest.mark.threat(50), pytest.mark.usefixtures("capable_host")]

PATIENCE_S = 5.0
AS_ALICE = (f"--reuid={ALICE.uid}", f"--regid={ALICE.gid}", "--clear-groups")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what a file system that hangs, and a process that is stopped, take."""
    monkeypatch.setattr(client, "PIECE_S", PATIENCE_S)
    monkeypatch.setattr(packing, "LOOK_S", PATIENCE_S)


@pytest.fixture
def site(base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TreeSite]:
    """Return a node where a tree of ws-tree-bob's waits to be packed, behind those of ws-tree-alice."""
    monkeypatch.setattr(process, "be_idle", lambda: None)
    monkeypatch.setattr(packing, "QUIET_S", 0.0)
    with a_tree_site(base) as site:
        yield site


def packed(site: TreeSite, tree: Path, during: AbstractContextManager[object] | None = None) -> tuple[str, object]:
    """Have a hostile tree packed, and return what became of it; an ordinary one is packed whatever it was."""
    site.tree("ordinary", BOB)
    assert site.ask(tree)
    assert site.ask(site.trees / "ordinary", BOB)
    with during or nullcontext():
        site.pack()
    assert site.outcome(BOB) == ("packed", 0)
    assert site.left() == []
    return site.outcome()


def links(tree: Path) -> None:
    for name, target in {"out": "/etc/shadow", "up": "../../..", "self": "self", "long": "x" * 4095}.items():
        (tree / name).symlink_to(target)


def special(tree: Path) -> None:
    """Make what is neither file nor directory: it hangs, or never ends, or does something when it is opened."""
    os.mkfifo(tree / "fifo")
    os.mknod(tree / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.mknod(tree / "disk", stat.S_IFBLK | 0o666, os.makedev(7, 0))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tree / "socket"))


def names(tree: Path) -> None:
    """Make names that are options, or no text."""
    for name in (b"-rf", b"\xff\xfe", b"a\nb", b" ", b"\\", b"n" * 255, b"...", b"\x1b[2J"):
        (tree / os.fsdecode(name)).write_text("x")


def hard_links(tree: Path) -> None:
    (tree / "one").write_bytes(bytes(100_000))
    for number in range(20):
        os.link(tree / "one", tree / f"{number}")


def deep(tree: Path) -> None:
    """Make more directories in each other than a process has descriptors for."""
    for _ in range(1100):
        tree /= "d"
        tree.mkdir()


def sparse(tree: Path) -> None:
    """Make a file of 8 EiB that takes no space."""
    (tree / "sparse").touch()
    os.truncate(tree / "sparse", 2**63 - 1)


def many(tree: Path) -> None:
    for number in range(2500):
        (tree / str(number)).touch()


@pytest.mark.parametrize(("make", "left_out"), [(links, 0), (special, 4), (names, 0), (hard_links, 0)])
def test_odd_names_and_files(site: TreeSite, make: Callable[[Path], None], left_out: int) -> None:
    """Files and links are in the copy as they are; the rest is left out, and nobody opens it."""
    tree = site.tree("hostile")
    make(tree)
    site.own(tree)
    (tree / "pyvenv.cfg").chmod(0o6755)  # a program that gives rights
    assert packed(site, tree) == ("packed", left_out)
    modes = [mode for mode, _ in site.copy().values()]
    assert {mode[0] for mode in modes} <= {"-", "d", "l"}
    assert site.copy()["pyvenv.cfg"][0] == "-rwxr-xr-x"
    assert sum(mode[0] == "l" for mode in modes) == (4 if make is links else 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [(deep, "directories lie in each other"), (sparse, "more than 67108864 bytes"), (many, "more than 2000 files")],
)
def test_more_than_a_tree_may_have_is_not_packed(site: TreeSite, make: Callable[[Path], None], words: str) -> None:
    tree = site.tree("hostile")
    make(tree)
    if make is not deep:
        site.own(tree)
    code, reason = packed(site, tree)
    assert (code, words in str(reason)) == ("tree-refused", True)
    subprocess.run(["rm", "-rf", str(tree)], check=True)


@pytest.mark.parametrize(
    ("lie", "codes"),
    [
        ("endless", {"tree-refused"}),
        ("inside", {"tree-refused", "tree-unusable"}),  # as soon as the kernel asks again
        ("twice", {"tree-unusable"}),
        ("short", {"tree-unusable"}),
    ],
)
def test_a_file_system_that_lies(site: TreeSite, lie: str, codes: set[str]) -> None:
    """Names without end, a directory in itself, a name twice, and a file that ends before its size."""
    source, tree = site.tree("source"), site.trees / "hostile"
    tree.mkdir()
    (source / "file").write_text("content")
    if lie == "short":
        (source / lie).write_text("content")
    else:
        (source / lie).mkdir()
    site.own(source)
    with odd_files.lying(source, tree):
        assert packed(site, tree)[0] in codes


def test_a_mount_in_the_tree_that_hangs(site: TreeSite) -> None:
    """It is not asked for anything, on a directory or on a file; the rest is packed."""
    tree = site.tree("hostile")
    (tree / "directory").mkdir()
    (tree / "file").touch()
    site.own(tree)
    with odd_files.hanging(tree / "directory", ALICE.uid), odd_files.hanging(tree / "file", ALICE.uid):
        assert packed(site, tree) == ("packed", 2)
    (event,) = site.told_of("tree.packed")
    assert sorted(event["examples"]) == [["directory", "on another mount"], ["file", "on another mount"]]


@pytest.mark.usefixtures("hasty")
def test_a_tree_that_hangs(site: TreeSite) -> None:
    """It costs others some seconds, and no process stays when it answers again."""
    tree = site.tree("hostile")
    site.tree("ordinary", BOB)
    assert site.ask(tree)
    assert site.ask(site.trees / "ordinary", BOB)
    with odd_files.hanging(tree, ALICE.uid):
        site.pack()
    assert site.outcome(BOB) == ("packed", 0)
    assert site.outcome()[0] == "store-unresponsive"
    wait_until("the process", lambda: not site.left(), 10)


@contextmanager
def working(*argv: str) -> Iterator[None]:
    """Have a program of the user's work in the tree during the pack, from its first line of output on."""
    worker = subprocess.Popen(["setpriv", *AS_ALICE, *argv], stdout=subprocess.PIPE)
    try:
        assert worker.stdout
        worker.stdout.readline()
        yield
    finally:
        worker.kill()
        worker.communicate()


def test_a_file_that_grows_for_ever(site: TreeSite) -> None:
    """It is read up to the size that it had, and the copy is not published."""
    tree = site.tree("hostile")
    (tree / "log").write_bytes(bytes(20 << 20))
    site.own(tree)
    growing = working("sh", "-c", f"echo; while :; do echo more >> {tree}/log; done")
    assert packed(site, tree, growing)[0] == "tree-unusable"


RENAMING = """\
import os, sys
os.chdir(sys.argv[1])
while True:
    for number in range(50):
        os.rename(f"d{number}", "away")
        os.symlink("/etc", f"d{number}")
        os.unlink(f"d{number}")
        os.rename("away", f"d{number}")
    print(flush=True)
"""


def test_directories_that_move_while_they_are_walked(site: TreeSite) -> None:
    """A link in a directory's place is not followed, and what moves is not published."""
    tree = site.tree("hostile")
    for number in range(50):
        (tree / f"d{number}" / "sub").mkdir(parents=True)
        for name in ("a", "b", "sub/c"):
            (tree / f"d{number}" / name).write_text("x" * 1000)
    site.own(tree)
    renaming = working("/usr/bin/python3", "-c", RENAMING, str(tree))
    assert packed(site, tree, renaming)[0] == "tree-unusable"


def test_a_tree_that_goes_while_it_is_packed(site: TreeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = site.tree("hostile")

    def take(stage: Stage, records: int) -> bool:
        if tree.exists():
            shutil.rmtree(tree)
        return real(stage, records)

    real = Stage.take
    monkeypatch.setattr(Stage, "take", take)
    assert packed(site, tree)[0] == "tree-unusable"


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("signal", "words"), [("STOP", "a signal has stopped"), ("KILL", "died")])
def test_a_user_who_stops_or_kills_the_process_that_reads(
    site: TreeSite, monkeypatch: pytest.MonkeyPatch, signal: str, words: str
) -> None:
    """The user may: it has the user's uid. It costs this user's copy."""
    tree = site.tree("hostile")
    real = Stage.take

    def taking(stage: Stage, records: int) -> bool:
        if stage._tree == str(tree):
            *_, child = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            subprocess.run(["setpriv", *AS_ALICE, "/bin/kill", f"-{signal}", child], check=True)
        return real(stage, records)

    monkeypatch.setattr(walk, "CHUNK", 1)
    monkeypatch.setattr(Stage, "take", taking)
    code, reason = packed(site, tree)
    assert (code, words in str(reason)) == ("store-unresponsive", True)


def test_a_user_who_asks_for_a_thousand_trees(site: TreeSite) -> None:
    """Eight wait, and another user's is packed."""
    tree = site.tree("hostile")
    accepted = sum(site.ask(tree, marker=f"{number}") for number in range(1000))
    assert accepted == requests.PACKS.most
    site.tree("ordinary", BOB)
    assert site.ask(site.trees / "ordinary", BOB)
    site.pack()
    assert site.outcome(BOB) == ("packed", 0)
    assert len(site.told_of("tree.pack-failed")) == requests.PACKS.most
    assert site.left() == []


def test_a_node_whose_disk_is_full(site: TreeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The space is reserved before it is used, the disk's floor stays free, and a small tree still comes through."""
    tree = site.tree("hostile")
    (tree / "weights").write_bytes(os.urandom(20 << 20))  # which takes as much packed
    site.own(tree)
    monkeypatch.setattr(space, "_STEP", 1 << 20)  # what a reservation is longer than what it holds
    free, real = [], Stage.take

    def take(stage: Stage, records: int) -> bool:
        try:
            return real(stage, records)
        finally:
            disk = os.statvfs(directory(site.paths))
            free.append(disk.f_bavail / disk.f_blocks)

    monkeypatch.setattr(Stage, "take", take)
    with mounts.tmpfs(Path(directory(site.paths)), "48m"):  # the records of a tree are there, too
        code, problem = packed(site, tree)
    assert code == "tree-unusable"
    assert "has no room" in str(problem)
    assert min(free) > 0.05


@pytest.mark.parametrize(("quota", "code"), [("1GiB", "store-full"), ("1MiB", "cache-quota-exceeded")])
def test_a_store_without_room(site: TreeSite, quota: str, code: str) -> None:
    tree = site.tree("hostile")
    (tree / "weights").write_bytes(os.urandom(10 << 20))
    site.own(tree)
    site.policy_of(quota=quota)
    with mounts.tmpfs(site.store, "8m" if code == "store-full" else "32m"):
        os.chown(site.store, site.owner.uid, site.owner.gid)
        assert packed(site, tree)[0] == code

"""An image is unpacked by an account without rights, and nobody but root can reach what comes of it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.lib.node import NODE
from tests.lib.shelf_site import ShelfSite
from warmstart.host import process
from warmstart.host.client import hashed_in_child, sync_in_child
from warmstart.host.deadline import Deadline
from warmstart.images import unpacking
from warmstart.images.store.published import Recorded
from warmstart.images.unpacked import Unpacked
from warmstart.run import state as runs


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "set_idle", lambda _: None)


@pytest.fixture
def site(base: Path) -> ShelfSite:
    return ShelfSite(base)


def test_an_image_is_unpacked_once(site: ShelfSite) -> None:
    key = site.publish_image(site.image())
    assert site.take(key) is None
    assert (site.ask(key), site.unpack(key)) == ("", 0)
    tree = site.take(key)
    assert tree
    account = site.policy.import_user
    assert (tree.uid, tree.gid) == (account.uid, account.gid)
    for above in (Path(tree.path).parent, site.shelf, site.shelf.parent):
        status = above.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o700)
    greeting = Path(tree.path, "usr/greeting")
    assert greeting.read_text() == "hello from app\n"
    assert {(path.stat().st_uid, path.stat().st_gid) for path in Path(tree.path).rglob("*")} == {account[1:]}
    assert not os.listdir(site.paths.queue + "/unpacks")
    (event,) = site.events("image.unpacked")
    assert (event["tree"], event["user"], event["done_by"]) == (key.tree, "u5001", {"hook": "unpack"})
    assert site.left() == []
    before = os.stat(tree.path).st_ino
    assert (site.ask(key), site.unpack(key)) == ("", 0)
    assert os.stat(tree.path).st_ino == before
    assert len(site.events("image.unpacked")) == 1


def test_it_is_fast_from_the_first_byte_on_while_somebody_waits(
    site: ShelfSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from when unsquashfs has begun: copying and listing take their time, too."""
    key, priorities = site.publish_image(site.image()), list[bool]()
    monkeypatch.setattr(process, "set_idle", priorities.append)
    copied = unpacking._Unpacking._copied

    def copying(self: unpacking._Unpacking, making: int) -> tuple[int, Recorded]:
        found.append(priorities[-1])
        return copied(self, making)

    found: list[bool] = []
    monkeypatch.setattr(unpacking._Unpacking, "_copied", copying)
    monkeypatch.setattr(unpacking, "START_S", 0)
    assert site.ask(key) == ""
    with site.awaited(key):
        assert site.unpack(key) == 0
    assert (found, priorities) == ([False], [False])


def test_who_waits_has_a_tree_before_it_is_on_the_disk(site: ShelfSite, monkeypatch: pytest.MonkeyPatch) -> None:
    key, found = site.publish_image(site.image()), list[Unpacked | None]()
    written = sync_in_child

    def writing(fd: int, deadline: Deadline) -> None:
        assert not (site.shelf / key.tree).exists()
        found.append(site.take(key))
        written(fd, deadline)

    monkeypatch.setattr(unpacking, "sync_in_child", writing)
    assert (site.ask(key), site.unpack(key)) == ("", 0)
    (tree,) = found
    assert tree
    os.close(tree.open())
    assert (site.shelf / key.tree / "tree/usr/greeting").exists()
    assert site.left() == []


@pytest.mark.parametrize("waits", [True, False])
def test_the_disk_is_left_to_containers_that_waited(
    site: ShelfSite, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """They start while the tree is in memory. Where nobody waited it goes to the disk at once."""
    key, done = site.publish_image(site.image()), list[str]()
    measured, sleeps = unpacking._Unpacking.measure, time.sleep

    def sleep(seconds: float) -> None:
        if seconds == unpacking.START_S:
            assert site.take(key)
            done.append("pause")
        else:
            sleeps(seconds)

    def measure(self: unpacking._Unpacking, making: int, about: unpacking.About) -> None:
        done.append("measure")
        measured(self, making, about)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(unpacking._Unpacking, "measure", measure)
    assert site.ask(key) == ""
    with site.awaited(key) if waits else nullcontext():
        assert site.unpack(key) == 0
    assert done == [*(["pause"] if waits else []), "measure"]


def test_nobody_has_a_tree_before_its_image_is_found_to_be_good(
    site: ShelfSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is hashed while it is unpacked, and both may be over first."""
    key = site.publish_image(site.image())

    @contextmanager
    def hashing(fd: int, deadline: Deadline) -> Iterator[Callable[[], str]]:
        def wait() -> str:
            assert (site.shelf / f"{key.tree}.unpacking/tree/usr/greeting").exists()
            assert site.take(key) is None
            return sha256()[::-1]

        with hashed_in_child(fd, deadline) as sha256:
            yield wait

    monkeypatch.setattr(unpacking, "hashed_in_child", hashing)
    assert (site.ask(key), site.unpack(key)) == ("", 0)
    assert "its SHA-256 is" in site.problem()
    assert (site.trees(), site.left()) == ([], [])
    assert "its SHA-256 is" in site.ask(key)  # the next job does not wait for it again


@pytest.mark.parametrize("had", [True, False])
def test_what_cannot_be_written_to_the_disk_gets_no_name(
    site: ShelfSite, monkeypatch: pytest.MonkeyPatch, had: bool
) -> None:
    key = site.publish_image(site.image())

    def fail(_: int, __: Deadline) -> None:
        assert not had or site.take(key)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(unpacking, "sync_in_child", fail)
        assert (site.ask(key), site.unpack(key)) == ("", 0)
    assert site.problem().endswith("Input/output error")
    assert site.trees() == []
    left = [f"{key.tree}.unpacking"] if had else []
    assert site.left() == left
    assert site.take(key, 8) is None
    assert site.unpack(key) == 0
    assert (site.trees() == []) is had
    assert site.command("maintain", "--node", NODE).exit_code == 0
    assert site.left() == left
    runs.forget(site.paths.state, 7)
    assert site.command("maintain", "--node", NODE).exit_code == 0
    assert site.left() == []


def test_a_private_image_has_a_tree_in_each_scope(site: ShelfSite) -> None:
    image = site.image()
    team, other = site.publish_image(image, "team"), site.publish_image(image, "other")
    assert (site.ask(team), site.unpack(team)) == ("", 0)
    assert site.take(team)
    assert site.take(other) is None
    assert site.take(team._replace(private="")) is None
    assert (site.ask(other), site.unpack(other)) == ("", 0)
    mine, theirs = site.take(team), site.take(other)
    assert mine
    assert theirs
    assert mine.path != theirs.path
    assert sorted(tree.about.private for tree in site.trees()) == ["other", "team"]


def test_what_is_gone_from_the_store_is_not_unpacked(site: ShelfSite) -> None:
    """It was evicted since a job asked."""
    key = site.publish_image(site.image())
    assert site.ask(key) == ""
    (site.store / "images" / f"{key.image}.sqsh").unlink()
    assert site.unpack(key) == 0
    assert site.problem().endswith("in the store there is no such image")


def test_no_more_than_the_policy_says_is_kept(site: ShelfSite) -> None:
    keys = [site.publish_image(site.image(f"many{number}")) for number in range(4)]
    single = site.publish_image(site.image("single"))
    for key in keys:
        assert (site.ask(key, 5001), site.unpack(key)) == ("", 0)
    assert (site.ask(single, 5002), site.unpack(single)) == ("", 0)
    assert site.take(keys[0])
    one = site.trees()[0].about.bytes
    site.policy_of(keep=f"{4 * one - 1}B")
    assert site.command("maintain", "--node", NODE).exit_code == 0
    assert sorted(tree.name for tree in site.trees()) == sorted(key.tree for key in (keys[0], keys[3], single))
    assert [event["reason"] for event in site.events("image.tree-evicted")] == ["above images.unpack.keep"] * 2
    assert site.left() == []


def test_what_an_image_has_is_known_since_its_import(site: ShelfSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking._Unpacking, "_listed", lambda *_: pytest.fail("it was listed"))
    key = site.publish_image(site.image(), files=3, unpacked=15)
    assert (site.ask(key), site.unpack(key)) == ("", 0)
    (tree,) = site.trees()
    assert (tree.about.files, tree.about.bytes) == (3, 15 + 3 * unpacking.PER_FILE)
    more = site.publish_image(site.image("more", **{str(number): "x" for number in range(9)}), files=3, unpacked=9)
    assert (site.ask(more), site.unpack(more)) == ("", 0)
    assert "more than its listing says" in site.problem()
    larger = site.publish_image(site.image("larger"), files=3, unpacked=1 << 60)
    assert (site.ask(larger, 5002), site.unpack(larger)) == ("", 0)
    assert [found.name for found in site.trees()] == [tree.name]


def test_a_node_without_a_disk_unpacks_where_the_policy_says_so(site: ShelfSite) -> None:
    key = site.publish_image(site.image())
    subprocess.run(["/bin/mount", "-t", "tmpfs", "none", site.base / "shelf"], check=True)
    assert site.ask(key) == f"{site.base}/shelf is on tmpfs, and images.unpack.any_disk is not set"
    site.policy_of(any_disk=True)
    assert (site.ask(key), site.unpack(key)) == ("", 0)
    assert site.take(key)


def test_a_full_disk_ends_it_and_nothing_is_left(site: ShelfSite) -> None:
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=96m", "none", site.base / "shelf"], check=True)
    site.policy_of(any_disk=True)
    first = site.publish_image(site.image("first", zeros="\0" * (40 << 20)))
    second = site.publish_image(site.image("second", zeros="\0" * (40 << 20)))
    assert (site.ask(first), site.unpack(first)) == ("", 0)
    assert site.take(first), site.problem()
    assert (site.ask(second), site.unpack(second)) == ("", 0)
    assert "has no room" in site.problem()
    assert ([tree.name for tree in site.trees()], site.left()) == ([first.tree], [])
    os.unlink(f"{site.paths.state}/7/tree-{first.tree}")
    os.unlink(f"{site.paths.queue}/unpacks/{os.listdir(site.paths.queue + '/unpacks')[0]}")
    assert (site.ask(second), site.unpack(second)) == ("", 0)
    assert [tree.name for tree in site.trees()] == [second.tree]

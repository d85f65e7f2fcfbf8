"""The launchers as a place of images, through a real worker as the store's owner; their policy, and maintenance."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tests.lib.node import Node
from tests.lib.policy_site import MINIMAL, Compile, Site
from tests.lib.wings.launchers.values import client, launchers
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images.reference import parse
from warmstart.images.store.client import ImageStoreClient
from warmstart.maintenance.store import locked
from warmstart.policy.document import PolicyInvalid
from warmstart.policy.keys import Wing
from warmstart.session import open_session
from warmstart.wings.launchers import places
from warmstart.wings.launchers.places import KEY, Launchers

REFERENCE = parse("reg.io/a:1")
NAME = "reg.io_a_1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "launchers").mkdir(mode=0o755)
    return tmp_path / "launchers"


@pytest.fixture
def store(tmp_path: Path) -> ImageStoreClient:
    """Give the client of an empty store of whoever runs the test."""
    (tmp_path / "store" / "images").mkdir(parents=True)
    return client(Identity("me", os.getuid(), os.getgid()), tmp_path / "store")


def taken(lock: Path) -> bool:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("lock", [True, False])
def test_an_import_holds_their_lock_if_they_have_one(folder: Path, store: ImageStoreClient, lock: bool) -> None:
    """A directory alone is one for links."""
    (there,) = launchers(folder, lock=lock)()
    path = folder / f"{NAME}.sqsh.lock"
    with there.held(REFERENCE, store, after(30), print) as problem:
        assert problem == ""
        assert not lock or taken(path)
    assert [file.name for file in folder.iterdir()] == [path.name] * lock
    assert not lock or not taken(path)


def test_a_lock_that_is_held_costs_a_part_of_the_time(
    folder: Path, store: ImageStoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait are told for what; then the import goes on, and says who has the lock."""
    monkeypatch.setattr(places, "POLL_S", 0.01)
    (there,) = launchers(folder, lock=True)()
    said: list[str] = []
    with (folder / f"{NAME}.sqsh.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with there.held(REFERENCE, store, after(2), said.append) as problem:
            assert problem == f"another process holds {NAME}.sqsh.lock"
    assert {*said} == {"waiting for the launcher that has the lock beside the image"}


def test_links_come_and_go(folder: Path, store: ImageStoreClient) -> None:
    (there,) = launchers(folder)()
    path = Path(store.path, "images", "x.sqsh")
    path.touch()
    there.show(REFERENCE, str(path), store, after(30))
    there.forget(store, after(30))
    assert (folder / f"{NAME}.sqsh").resolve() == path
    path.unlink()
    there.forget(store, after(30))
    assert list(folder.iterdir()) == []


def test_the_policy_says_where_they_are(compiled_of: Compile) -> None:
    """Imports of sites that name no directory do not load them."""
    policy = compiled_of(f"{MINIMAL}launchers: {{directory: /images, lock: true}}\n")
    assert places.of_policy(policy) == Launchers("/images", True)
    assert policy.parts("places") == ["launchers.places"]
    for text in ("", "launchers: {}\n"):
        assert compiled_of(f"{MINIMAL}{text}").parts("places") == []


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("{lock: true}", r"3:19: launchers\.lock: needs launchers\.directory"),
        ("{directory: /shared}", r"3:24: launchers\.directory: may be neither in paths\.store"),
        ("{directory: /a//b}", r"3:24: launchers\.directory: '/a//b' is not an absolute path"),
    ],
)
def test_what_cannot_hold_is_refused(site: Site, text: str, refusal: str) -> None:
    site.write(f"{MINIMAL}launchers: {text}\n")
    with pytest.raises(PolicyInvalid, match=refusal):
        site.compiled()


def test_maintenance_removes_links_that_a_killed_eviction_left(node: Node, folder: Path) -> None:
    own = {KEY: {"directory": str(folder), "lock": False}}
    node.write(node.policy._replace(own=own, wings=(Wing("launchers", used=True, step="", early=False, end=""),)))
    (folder / "gone.sqsh").symlink_to(f"{node.store}/images/gone.sqsh")
    (folder / "theirs.sqsh").symlink_to("/nowhere/gone.sqsh")
    with open_session(node.installation, "maintain", "n1") as session, locked(session) as work:
        assert work.all().failed == 0
    assert [path.name for path in folder.iterdir()] == ["theirs.sqsh"]

"""The launchers as a place of images: through a real worker, as the store's owner."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.lib.policy_site import MINIMAL, Compile
from tests.lib.wings.launchers.values import client, launchers
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images.reference import parse
from warmstart.images.store.client import ImageStoreClient
from warmstart.store.client import StoreClient
from warmstart.wings.launchers import places, stored
from warmstart.wings.launchers.places import Launchers

REFERENCE = parse("reg.io/a:1")
NAME = "reg.io_a_1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give the launchers' directory."""
    (tmp_path / "launchers").mkdir()
    (tmp_path / "launchers").chmod(0o755)
    return tmp_path / "launchers"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStoreClient]:
    """Give the client of an empty store of whoever runs the test."""
    (tmp_path / "store" / "images").mkdir(parents=True)
    with client(Identity("me", os.getuid(), os.getgid()), tmp_path / "store") as made:
        yield made


def taken(lock: Path) -> bool:
    """Return whether somebody holds a lock."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_an_import_holds_their_lock(folder: Path, store: ImageStoreClient) -> None:
    (there,) = launchers(folder, lock=True)()
    with there.held(REFERENCE, store, after(30), print) as problem:
        assert problem == ""
        assert taken(folder / f"{NAME}.sqsh.lock")
    assert not taken(folder / f"{NAME}.sqsh.lock")


@pytest.mark.timed
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


def test_without_a_lock_nothing_is_touched(folder: Path, store: ImageStoreClient) -> None:
    (there,) = launchers(folder)()
    with there.held(REFERENCE, store, after(30), print) as problem:
        assert problem == ""
    assert list(folder.iterdir()) == []


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
    policy = compiled_of(f"{MINIMAL}launchers: {{directory: /images, lock: true}}\n")
    assert places.of_policy(policy) == Launchers("/images", True)
    assert policy.parts("places") == ["launchers.places"]
    assert compiled_of(MINIMAL).parts("places") == []


@pytest.mark.parametrize("used", [True, False])
def test_their_functions_run_as_the_stores_owner_where_the_policy_uses_them(
    compiled_of: Compile, tmp_path: Path, used: bool
) -> None:
    policy = compiled_of(MINIMAL + ("launchers: {directory: /images}\n" if used else ""))
    policy = policy._replace(store_user=Identity("me", os.getuid(), os.getgid()))
    refused: AbstractContextManager[object] = (
        nullcontext() if used else pytest.raises(ValueError, match="may not run as me")
    )
    with StoreClient.of(policy, "") as made, refused:
        assert made.worker.run(after(30), stored.forget, str(tmp_path), "/images") == 0

"""Each operation of the image store through a real worker: what it takes and returns can cross, and is checked."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.image_site import RULES
from tests.support.superblocks import image
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.images.client import ImageStoreClient
from warmstart.images.launchers import AdoptedImage
from warmstart.images.layout import NOBODY, Found, ImageQuery, Pointer, TagTimes, image_name
from warmstart.images.published import Draft, Producer, RememberedFailure
from warmstart.images.reference import parse
from warmstart.policy.compiled import Adopt
from warmstart.store.layout import StoreFailed

DIGEST = f"sha256:{'ab' * 32}"
KIND = "x86_64.none1"
NAME = image_name(DIGEST, KIND)
WANT = ImageQuery(parse("reg.io/a:1"), KIND, "key", "lock", TagTimes(time.time() - 60, time.time() - 30))
DRAFT = Draft(DIGEST, "reg.io/a:1", KIND, "none", 1e9, "n1", 7, NOBODY)
SOON = after(60)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStoreClient]:
    """Return the client of an empty store of whoever runs the test."""
    (tmp_path / "store").mkdir()
    with ImageStoreClient.of(Identity("me", os.getuid(), os.getgid()), str(tmp_path / "store")) as client:
        yield client


@pytest.fixture
def local(tmp_path: Path) -> Iterator[int]:
    """Return a descriptor of a whole image on the local disk."""
    (tmp_path / "local").write_bytes(image())
    fd = os.open(tmp_path / "local", os.O_RDWR)
    yield fd
    os.close(fd)


def test_an_image_comes_and_goes(store: ImageStoreClient, local: int) -> None:
    """From publishing to eviction."""
    assert store.find(WANT, SOON) is None
    assert store.sweep(WANT, SOON) == 0
    assert store.publish_image(local, NAME, DRAFT, "t", SOON).first
    store.point(WANT, DIGEST, time.time(), "t", SOON)
    path = f"{store.path}/images/{NAME}.sqsh"
    assert store.find(WANT, SOON) == Found(NAME, path, DIGEST, len(image()), stale=False, invalid="")
    store.mark(NAME, "n1", SOON)
    assert store.mark_served(NAME, "n2", SOON)
    assert not store.mark_served(image_name(f"sha256:{'cd' * 32}", KIND), "n2", SOON)
    (entry,) = store.inventory(600.0, SOON)
    assert (entry.path, entry.reference, entry.nodes) == (path, "reg.io/a:1", ["n1", "n2"])
    assert store.stores(SOON) == [store.path]
    assert store.check_bytes(NAME, "t", SOON).problem == ""
    store.pin(NAME, "t", SOON)
    assert store.make_room(0, RULES, NOBODY, SOON) == []
    assert not store.evict(NAME, RULES, SOON)
    assert store.unpin(NAME, SOON)
    assert store.evict(NAME, RULES, SOON, forced=True)


def test_a_tag_has_a_pointer(store: ImageStoreClient) -> None:
    """What it meant, and when the registry did not answer for it."""
    assert store.last_pointer(WANT, SOON) is None
    store.point(WANT, DIGEST, 1e9, "t", SOON)
    assert store.last_pointer(WANT, SOON) == Pointer(DIGEST, 1e9)
    store.point_unanswered(WANT, "t", SOON)
    pointer = store.last_pointer(WANT, SOON)
    assert pointer is not None
    assert pointer.unanswered > 1e9


def test_one_imports(store: ImageStoreClient) -> None:
    """A second client hears who does, and of a definitive failure; the lock goes back, or with its worker."""
    me = Producer("n1", 1, 7, "x")
    other = store.separate()
    with other:
        assert store.begin(WANT, me, "t", SOON) == ""
        assert other.begin(WANT, me, "t", SOON) is None
        store.announce(WANT, me._replace(doing="y"), "t", SOON)
        assert other.producer_of(WANT, SOON) == me._replace(doing="y")
        failure = RememberedFailure("image-not-found", {"image": "reg.io/a:1"})
        assert other.recall(WANT, 30, SOON) is None
        store.remember(WANT, failure, "t", SOON)
        assert other.recall(WANT, 30, SOON) == failure
        store.end(WANT, Deadline(0.0))  # no answer in time: the worker ends, and its lock with it
        assert other.begin(WANT, me, "t", SOON) == ""
        other.end(WANT, SOON)
        assert store.producer_of(WANT, SOON) is None


def test_a_damaged_image_is_kept_for_a_while(store: ImageStoreClient, local: int) -> None:
    """Quarantined, shown, and removed in the end."""
    store.publish_image(local, NAME, DRAFT, "t", SOON)
    found = store.check_bytes(NAME, "t", SOON)
    assert not store.quarantine(NAME, "seems odd", SOON, inode=found.inode + 1)
    assert store.quarantine(NAME, "seems odd", SOON, inode=found.inode)
    (entry,) = store.quarantined(SOON)
    assert (entry.reason, entry.reference) == ("seems odd", "reg.io/a:1")
    assert store.empty_quarantine(time.time(), 0.0, SOON) == []
    assert store.empty_quarantine(time.time() + 30 * 86400, 0.0, SOON) == [entry.name]


def test_private_images_have_a_store_of_their_own(store: ImageStoreClient, local: int, tmp_path: Path) -> None:
    """The same operations, below the store; a job's copy is written by descriptor."""
    private = store.private("team", SOON)
    private.publish_image(local, NAME, DRAFT, "t", SOON)
    (entry,) = private.inventory(0.0, SOON)
    assert entry.store == private.path == f"{store.path}/private/team"
    assert store.inventory(0.0, SOON) == []
    fd = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT)
    try:
        assert store.copy_out(entry.path, fd, SOON) == ""
    finally:
        os.close(fd)
    assert (tmp_path / "copy").read_bytes() == image()


def test_other_launchers(store: ImageStoreClient, tmp_path: Path) -> None:
    """Their lock, their names, their images."""
    folder = tmp_path / "launchers"
    folder.mkdir()
    folder.chmod(0o755)
    assert store.try_launchers_lock(str(folder), "a", SOON) == ""
    store.release_launchers_lock("a", SOON)
    assert store.link_for_launchers(str(folder), ["b"], "/store/1.sqsh", SOON) == 1
    fd = os.open(tmp_path / "adopted", os.O_RDWR | os.O_CREAT)
    try:
        places = (Adopt(str(folder), (os.getuid(),)),)
        assert store.adopt(fd, places, ["c"], 0.0, SOON) == ""
        (folder / "c.sqsh").write_bytes(image())
        (folder / "c.sqsh").chmod(0o644)
        taken = store.adopt(fd, places, ["c"], 0.0, SOON)
        assert isinstance(taken, AdoptedImage)
        assert taken.path == str(folder / "c.sqsh")
    finally:
        os.close(fd)


def test_errors_say_what_they_are_about(store: ImageStoreClient) -> None:
    """The store, or what its user has named."""
    gone = store.at(f"{store.path}/gone")
    with pytest.raises(StoreFailed, match=f"the image store of {gone.path}: No such file"):
        gone.inventory(0.0, SOON)
    with pytest.raises(StoreFailed, match=r"image reg\.io/a:1: No such file"):
        gone.about("image reg.io/a:1").last_pointer(WANT, SOON)

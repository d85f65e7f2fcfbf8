"""Each operation of the image store through a real worker: what it takes and returns can cross, and is checked."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import ANY

import pytest

from tests.lib.superblocks import image
from tests.lib.worker_calls import put_in_place
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity, WorkerDied, WorkerSilent
from warmstart.images.reference import parse
from warmstart.images.store import eviction, layout, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import NOBODY, ImageQuery, image_name
from warmstart.images.store.published import ImageDraft, ImageProducer, RememberedFailure
from warmstart.store.layout import StoreFailed

DIGEST = f"sha256:{'ab' * 32}"
KIND = "x86_64.none1"
NAME = image_name(DIGEST, KIND)
WANT = ImageQuery(parse("reg.io/a:1"), KIND, "key", "lock", time.time() - 60)
DRAFT = ImageDraft(DIGEST, "reg.io/a:1", KIND, "none", 1e9, "n1", 7, NOBODY)


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


def test_a_use_is_recorded_once_a_day(store: ImageStoreClient, tmp_path: Path) -> None:
    known = tmp_path / "uses"
    assert [store.record_use(NAME, "n1", str(known), after(60)) for _ in range(2)] == [True, False]
    for age in (86_401, -10_000):
        os.utime(known / NAME, (time.time() - age,) * 2)
        assert store.record_use(NAME, "n1", str(known), after(60))


def test_a_look_up_whose_worker_dies_is_asked_again(store: ImageStoreClient, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store.about("image reg.io/a:1 in the store /s")
    assert store.find(WANT, after(60)) is None
    os.kill(store.worker._pid, signal.SIGKILL)
    assert store.find(WANT, after(60)) is None
    store.close()
    put_in_place(monkeypatch, layout, "find", die)
    with pytest.raises(WorkerDied) as raised:
        store.find(WANT, after(60))
    assert str(raised.value) == "image reg.io/a:1 in the store /s: the helper process that was at work there died"
    with pytest.raises(WorkerSilent, match=r"image reg\.io/a:1 in the store /s: no time was left"):
        store.find(WANT, after(0))


def die(_store: str, _key: str, _digest: str, _kind: str, _fresh_after: float) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_one_imports(store: ImageStoreClient) -> None:
    me = ImageProducer("n1", 1, 7, "x")
    other = store.separate()
    with other:
        assert store.run(after(60), published.begin, WANT.lock, me, "t") == ""
        assert other.run(after(60), published.begin, WANT.lock, me, "t") is None
        store.run(after(60), published.announce, WANT.lock, me._replace(phase="y"), "t")
        assert other.look(after(60), published.producer_of, WANT.lock) == me._replace(phase="y")
        assert other.look(after(60), published.is_at_work, WANT.lock)
        failure = RememberedFailure("image-not-found", {"image": "reg.io/a:1"})
        assert other.look(after(60), published.last_failure, WANT.lock) is None
        store.run(after(60), published.remember, WANT.lock, failure, "t")
        assert other.look(after(60), published.last_failure, WANT.lock) == failure._replace(at=ANY)
        store.end(WANT, Deadline(0.0))  # no answer in time: the worker ends, and its lock with it
        assert not other.look(after(60), published.is_at_work, WANT.lock)
        assert other.run(after(60), published.begin, WANT.lock, me, "t") == ""
        other.end(WANT, after(60))
        assert store.look(after(60), published.producer_of, WANT.lock) is None


def test_errors_say_what_they_are_about(store: ImageStoreClient) -> None:
    gone = store.at(f"{store.path}/gone")
    with pytest.raises(StoreFailed, match=f"the image store of {gone.path}: No such file"):
        gone.run(after(60), eviction.inventory, 0.0)
    with pytest.raises(StoreFailed, match=r"image reg\.io/a:1: No such file"):
        gone.about("image reg.io/a:1").look(after(60), published.last_pointer, WANT.key)

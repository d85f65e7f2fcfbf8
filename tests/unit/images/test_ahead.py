"""The image of a job and the listings of its caches are one question, whose answers come one by one."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib.image_site import HEX, KIND
from tests.lib.superblocks import image
from warmstart.caches.store import look
from warmstart.caches.store.look import Found, Generation, Want
from warmstart.host.deadline import after
from warmstart.host.identity import Identity, WorkerAnswerMalformed, WorkerSilent
from warmstart.images.ahead import Ahead, Listings
from warmstart.images.reference import parse
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import ImageQuery

DIGEST = f"sha256:{HEX}"
QUERY = ImageQuery(parse(f"reg.io/a@{DIGEST}"), KIND, "key", "lock", 0.0)
NOTHING = Found([], [], False, 0, {"site": Generation(0, "")}, {})


@pytest.fixture
def store(tmp_path: Path) -> ImageStoreClient:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / f"{HEX}.{KIND}.sqsh").write_bytes(image())
    return ImageStoreClient.of(Identity("me", os.getuid(), os.getgid()), str(tmp_path))


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    real, seen = os.fork, list[int]()

    def fork() -> int:
        seen.append(1)
        return real()

    monkeypatch.setattr(os, "fork", fork)
    return seen


def wanted(digest: str) -> tuple[list[str], list[Want]]:
    return ["site"], [Want("alpha", digest.removeprefix("sha256:"))]


def test_one_process_answers_both(store: ImageStoreClient, forks: list[int]) -> None:
    ahead = Ahead(store.path, wanted)
    found = ahead.find(store, QUERY, DIGEST, after(60))
    assert found is not None
    assert found.digest == DIGEST
    assert ahead.listings(*wanted(DIGEST), after(60)) == [NOTHING]
    assert forks == [1]
    assert ahead.listings(*wanted(DIGEST), after(60)) is None


def test_another_question_is_not_answered(store: ImageStoreClient) -> None:
    """The job's caches are of another image, say."""
    ahead = Ahead(store.path, wanted)
    assert ahead.listings(*wanted(DIGEST), after(60)) is None
    ahead.find(store, QUERY, DIGEST, after(60))
    assert ahead.listings(*wanted("sha256:other"), after(60)) is None


@pytest.mark.parametrize("spoil", [os.unlink, lambda path: path.write_bytes(b"damaged")])
def test_without_an_image_nothing_is_looked_for(store: ImageStoreClient, spoil: Callable[[Path], object]) -> None:
    spoil(Path(store.path, "images", f"{HEX}.{KIND}.sqsh"))
    ahead = Ahead(store.path, wanted)
    found = ahead.find(store, QUERY, DIGEST, after(60))
    assert found is None or found.invalid
    assert ahead.listings(*wanted(DIGEST), after(60)) is None


def test_a_slow_cache_costs_warmth_alone(store: ImageStoreClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "look", lambda *_: time.sleep(60))
    ahead = Ahead(store.path, wanted)
    assert ahead.find(store, QUERY, DIGEST, after(60)) is not None
    with pytest.raises(WorkerSilent):
        ahead.listings(*wanted(DIGEST), after(0.05))
    with pytest.raises(ChildProcessError):  # it is killed
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.threat(7)
def test_listings_are_no_image(store: ImageStoreClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(*_: object) -> Iterator[Listings | None]:
        yield Listings(*wanted(DIGEST), [NOTHING])

    monkeypatch.setattr(Ahead, "_answers", answers)
    with pytest.raises(WorkerAnswerMalformed):
        Ahead(store.path, wanted).find(store, QUERY, DIGEST, after(60))

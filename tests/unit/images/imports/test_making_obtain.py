"""An image that this process obtains: who imports, who waits, what waiters are told. The import is a stand-in."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib import image_site
from tests.lib.image_site import HEX, put_image
from warmstart.host.deadline import Deadline, after
from warmstart.images.importers.base import ImageNotFound, RegistryUnreachable
from warmstart.images.imports import making
from warmstart.images.imports.making import Flight
from warmstart.images.imports.waiting import ImageWaitExpired
from warmstart.images.query import Obtained, Site, as_obtained
from warmstart.images.reference import parse
from warmstart.images.store import published
from warmstart.images.store.eviction import ImageQuotaExceeded
from warmstart.images.store.layout import ImageQuery, key_of
from warmstart.images.store.published import ImageProducer, RememberedFailure
from warmstart.store.layout import StoreFailed
from warmstart.store.locks import HeldLock, try_lock

BY_DIGEST = parse(f"reg.io/a@sha256:{HEX}")
LOCK = f"{key_of(BY_DIGEST.canonical())}.{image_site.KIND}"
OTHER = ImageProducer("n9", 99, 8, "2026-01-01T00:00:00Z")
NOT_FOUND = RememberedFailure("image-not-found", {"image": "reg.io/a"})


@pytest.fixture
def others_lock(site: Site) -> Iterator[None]:
    """Let somebody else be the producer, as job 8 on node n9."""
    assert published.begin(site.store.path, LOCK, OTHER, "test") == ""
    yield
    published.end(site.store.path, LOCK)


def nothing_to_import(*_: object) -> NoReturn:
    raise AssertionError("imported")


def test_the_first_one_imports(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(producer: Flight) -> Obtained:
        query, site, deadline = producer[:3]
        assert try_lock(f"{site.store.path}/images/locks", f"{LOCK}.lock") is None
        put_image(site)
        image = as_obtained(site.store.find(query, deadline), "imported")
        assert image
        return image

    monkeypatch.setattr(making, "_import", make)
    assert making.obtain(BY_DIGEST, site, after(5)).how == "imported"
    held = try_lock(f"{site.store.path}/images/locks", f"{LOCK}.lock")
    assert held is not None
    held.release()
    assert published.producer_of(site.store.path, LOCK) is None


@pytest.mark.usefixtures("others_lock")
def test_a_waiter_is_released_by_the_image_and_not_by_the_lock(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_import", nothing_to_import)
    monkeypatch.setattr(time, "sleep", lambda _: put_image(site))
    found = making.obtain(BY_DIGEST, site, after(5))
    assert found.how == "waited"


@pytest.mark.usefixtures("others_lock")
def test_a_waiters_deadline_names_the_producer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says who is importing, on which host, for which job and since when; nothing was imported."""
    monkeypatch.setattr(making, "_import", nothing_to_import)
    with pytest.raises(ImageWaitExpired) as raised:
        making.obtain(BY_DIGEST, site, after(0.01))
    expected = "imported by pid 99 on n9 for job 8 since 2026-01-01T00:00:00Z"
    assert raised.value.fields["producer"] == expected


def test_the_locks_holder_looks_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = making.begin

    def late(query: ImageQuery, site: Site, deadline: Deadline) -> Flight | None:
        put_image(site)
        return begin(query, site, deadline)

    monkeypatch.setattr(making, "begin", late)
    monkeypatch.setattr(making, "_import", nothing_to_import)
    assert making.obtain(BY_DIGEST, site, after(5)).how == "reused"


def test_a_definitive_failure_is_remembered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> NoReturn:
        raise ImageNotFound(image="reg.io/a")

    monkeypatch.setattr(making, "_import", missing)
    with pytest.raises(ImageNotFound):
        making.obtain(BY_DIGEST, site, after(5))
    monkeypatch.setattr(making, "_import", nothing_to_import)
    with pytest.raises(ImageNotFound) as raised:
        making.obtain(BY_DIGEST, site, after(5))
    assert raised.value.fields == {"image": "reg.io/a"}


@pytest.mark.threat(15)
def test_an_outage_is_not_remembered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def down(*_: object) -> NoReturn:
        asked.append(1)
        raise RegistryUnreachable(image="reg.io/a", problem="x")

    monkeypatch.setattr(making, "_import", down)
    for _ in range(2):
        with pytest.raises(RegistryUnreachable):
            making.obtain(BY_DIGEST, site, after(5))
    assert len(asked) == 2


def test_failures_are_forgotten(site: Site) -> None:
    published.remember(site.store.path, LOCK, NOT_FOUND, "test")
    assert counts(site)
    path = Path(site.store.path) / "images" / "failed" / f"{LOCK}.json"
    for content in ("[]", "{", json.dumps({"at": time.time() - 31, "code": NOT_FOUND.code, "fields": {}}),
                    json.dumps({"at": time.time() + 9999, "code": NOT_FOUND.code, "fields": {}})):  # fmt: skip
        path.chmod(0o644)
        path.write_text(content)
        assert not counts(site)


def counts(site: Site) -> bool:
    """Return whether a definitive failure is remembered that is less than half a minute old."""
    failure = published.last_failure(site.store.path, LOCK)
    return failure is not None and published.is_definitive(failure)


def test_a_store_that_is_not_there_is_the_stores_fault(site: Site) -> None:
    Path(site.store.path).rmdir()
    with pytest.raises(StoreFailed):
        making.obtain(BY_DIGEST, site, after(5))
    assert not Path(site.store.path).exists()


def test_one_users_quota_is_not_remembered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> NoReturn:
        raise ImageQuotaExceeded(bytes=1, user="alice", taken=1, quota=1)

    monkeypatch.setattr(making, "_import", refused)
    with pytest.raises(ImageQuotaExceeded):
        making.obtain(BY_DIGEST, site, after(5))
    assert not counts(site)


def test_a_failure_is_forgotten_in_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    published.remember(site.store.path, LOCK, NOT_FOUND, "test")
    with pytest.raises(ImageNotFound):
        making.obtain(BY_DIGEST, site, after(5))
    monkeypatch.setattr(making, "_import", nothing_to_import)
    monkeypatch.setattr(published, "REMEMBERED_S", 0)
    with pytest.raises(AssertionError, match="imported"):
        making.obtain(BY_DIGEST, site, after(5))


@pytest.mark.usefixtures("others_lock")
def test_a_waiters_deadline_tells_what_the_producer_does(site: Site) -> None:
    published.announce(site.store.path, LOCK, OTHER._replace(since="x", phase="checking 3 MiB"), "test")
    with pytest.raises(ImageWaitExpired) as raised:
        making.obtain(BY_DIGEST, site, after(0.01))
    assert str(raised.value.fields["producer"]).endswith("since x, now checking 3 MiB")


def test_a_store_without_locks_is_said_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> HeldLock:
        return HeldLock(contextlib.nullcontext(), "No locks available")

    def make(producer: Flight) -> Obtained:
        put_image(site)
        return found_by(producer)

    monkeypatch.setattr(HeldLock, "release", lambda _: None)
    monkeypatch.setattr(published, "try_lock", none)
    monkeypatch.setattr(making, "_import", make)
    assert making.obtain(BY_DIGEST, site, after(5)).missing.lockless == "No locks available"
    assert making.obtain(BY_DIGEST, site, after(5)).missing.lockless == ""


def found_by(producer: Flight) -> Obtained:
    """Look the image up as an import does at its end."""
    image = as_obtained(producer.site.store.find(producer.query, producer.deadline), "imported")
    assert image
    return image

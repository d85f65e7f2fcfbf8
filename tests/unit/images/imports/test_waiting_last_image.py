"""What a hook does with a failure where the image that the tag meant last is in the store."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib import image_site
from tests.lib.superblocks import image
from warmstart import errand
from warmstart.errors import WarmstartError
from warmstart.host import detached
from warmstart.host.deadline import after
from warmstart.images import single_flight
from warmstart.images.importers.base import (
    ImageForbidden,
    ImageNotForMachine,
    ImageNotFound,
    ImportFailed,
    RegistryAnswerUnusable,
    RegistryUnreachable,
)
from warmstart.images.imports import requests, waiting
from warmstart.images.imports.requests import ImportRequest
from warmstart.images.imports.waiting import ImageWaitExpired, name_images
from warmstart.images.query import Site, query_by_rules
from warmstart.images.reference import parse
from warmstart.images.store import published
from warmstart.images.store.published import ImageProducer, RememberedFailure
from warmstart.store.layout import StoreFull

pytestmark = pytest.mark.timed

HEX, NEW = "ab" * 32, f"sha256:{'cd' * 32}"
DIGEST = f"sha256:{HEX}"
WANTED = parse("reg.io/a:1")
OUTAGE = RegistryUnreachable(image="reg.io/a:1", problem="no answer")
FULL = StoreFull(what="image reg.io/a:1 in the store /s", problem="No space left on device")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return the site of a hook; the store has the image, and the tag's time to live is over."""
    (tmp_path / "store" / "images").mkdir(parents=True)
    (tmp_path / "store" / "images" / f"{HEX}.{image_site.KIND}.sqsh").write_bytes(image())
    made = image_site.site(tmp_path / "store", tmp_path / "workspace")
    query = query_by_rules(WANTED, made.rules, made.recipe)
    published.point(made.store.path, query.key, DIGEST, time.time() - 1000, "test")
    return made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return what happens, one after another, when imports are started; nothing after the last."""
    deeds: list[Callable[[], object]] = []
    monkeypatch.setattr(detached, "start", lambda _argv, **_: deeds.pop(0)() if deeds else None)
    return deeds


def told_here(site: Site, error: WarmstartError) -> None:
    """Remember a failure on the node, as an import does that cannot write the store."""
    image = ImportRequest.of(query_by_rules(WANTED, site.rules, site.recipe), site).image
    requests.remember_failure(site.paths, image, RememberedFailure.of(error))


def told(site: Site, error: WarmstartError) -> None:
    lock = query_by_rules(WANTED, site.rules, site.recipe).lock
    published.remember(site.store.path, lock, RememberedFailure.of(error), "test")


def moved(site: Site, error: WarmstartError) -> WarmstartError:
    """Return the error of an import of what the tag means now."""
    query = query_by_rules(WANTED, site.rules, site.recipe)
    name_images(error, query, waiting.known(query, site, after(5)), NEW)
    return error


@pytest.mark.parametrize("error", [OUTAGE, FULL, RegistryAnswerUnusable(image="reg.io/a:1", problem="a page")])
def test_a_failure_that_says_nothing_of_the_tag(
    site: Site, started: list[Callable[[], object]], error: WarmstartError, monkeypatch: pytest.MonkeyPatch
) -> None:
    started.append(lambda: told_here(site, error))
    found = single_flight.obtain(WANTED, site, after(5))
    assert (found.digest, found.how) == (DIGEST, "stale")
    assert re.fullmatch(rf"its registry said so \d\S* ago; {re.escape(str(error))}", found.reason)
    started.append(lambda: pytest.fail("asked again"))
    assert single_flight.obtain(WANTED, site, after(5)).how == "stale"
    started[:] = [lambda: told(site, OUTAGE)]
    monkeypatch.setattr(published, "REMEMBERED_S", 0)
    assert single_flight.obtain(WANTED, site, after(5)).reason.endswith(f" ago; {OUTAGE}")
    assert started == []


def test_what_one_node_heard_spares_the_others(site: Site, started: list[Callable[[], object]]) -> None:
    told(site, OUTAGE)
    started.append(lambda: pytest.fail("asked"))
    assert single_flight.obtain(WANTED, site, after(5)).how == "stale"


@pytest.mark.parametrize(
    "error",
    [
        ImageNotFound(image="reg.io/a:1"),
        ImageForbidden(image="reg.io/a:1", problem="401"),
        ImageNotForMachine(image="reg.io/a:1", machine="x"),
    ],
)
def test_a_clear_answer_is_believed(site: Site, started: list[Callable[[], object]], error: WarmstartError) -> None:
    started.append(lambda: told(site, error))
    for _ in range(2):
        with pytest.raises(type(error)):
            single_flight.obtain(WANTED, site, after(5))


@pytest.mark.parametrize(
    "error", [ImportFailed(image="i", program="p", problem="x"), ImageNotForMachine(image="i", machine="x")]
)
def test_a_tag_that_means_another_image_now(
    site: Site, started: list[Callable[[], object]], error: WarmstartError
) -> None:
    started.append(lambda: told(site, moved(site, error)))
    with pytest.raises(type(error)) as raised:
        single_flight.obtain(WANTED, site, after(5))
    assert str(raised.value).endswith(
        f"; the tag means {NEW} now, and reg.io/a@{DIGEST}, which it meant before, is in the store"
    )
    assert str(raised.value).count(NEW) == 1


def test_an_error_that_this_release_does_not_know(site: Site, started: list[Callable[[], object]]) -> None:
    lock = query_by_rules(WANTED, site.rules, site.recipe).lock
    later = RememberedFailure("code-of-tomorrow", {waiting.NEW_DIGEST: NEW, "also": "; x"}, "odd; x")
    started.append(lambda: published.remember(site.store.path, lock, later, "test"))
    with pytest.raises(ImportFailed, match=r"odd; x$"):
        single_flight.obtain(WANTED, site, after(5))


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("digest", ["", NEW])
def test_the_end_of_the_wait(site: Site, digest: str) -> None:
    lock = query_by_rules(WANTED, site.rules, site.recipe).lock
    producer = ImageProducer("n9", 99, 8, "2026-01-01T00:00:00Z", digest=digest)
    assert published.begin(site.store.path, lock, producer, "test") == ""
    try:
        if digest:
            with pytest.raises(ImageWaitExpired, match=f"the tag means {NEW} now, and reg.io/a@{DIGEST}"):
                single_flight.obtain(WANTED, site, after(1.2))
        else:
            found = single_flight.obtain(WANTED, site, after(1.2))
            assert (found.how, found.digest) == ("stale", DIGEST)
            assert "still missing" in found.reason
    finally:
        published.end(site.store.path, lock)


def test_requests_that_cannot_be_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(errand, "replace_file", full)
    assert single_flight.obtain(WANTED, site, after(5)).how == "stale"


def test_a_last_image_that_is_damaged_is_none(site: Site, started: list[Callable[[], object]]) -> None:
    (Path(site.store.path) / "images" / f"{HEX}.{image_site.KIND}.sqsh").write_bytes(b"x")
    started.append(lambda: told(site, OUTAGE))
    with pytest.raises(RegistryUnreachable):
        single_flight.obtain(WANTED, site, after(5))

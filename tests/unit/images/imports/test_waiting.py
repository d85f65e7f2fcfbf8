"""What a hook does for a missing image: it asks for an import once, waits, and hears how it ended; it never imports."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib import image_site
from tests.lib.image_site import HEX, put_image
from warmstart import errand
from warmstart.errand import Errands
from warmstart.errors import WarmstartError
from warmstart.host import detached
from warmstart.host.deadline import after
from warmstart.images import single_flight
from warmstart.images.importers.base import ImageNotFound, ImportFailed, RegistryUnreachable
from warmstart.images.imports import requests
from warmstart.images.imports.job_end import JobOver
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.images.imports.waiting import ImageWaitExpired
from warmstart.images.query import Site, query_by_rules
from warmstart.images.reference import parse
from warmstart.images.scratch import WorkspaceUnusable
from warmstart.images.store import published
from warmstart.images.store.eviction import ImageQuotaExceeded
from warmstart.images.store.layout import Charged, key_of
from warmstart.images.store.published import ImageProducer, RememberedFailure
from warmstart.record import StateFull, StateUnusable

pytestmark = pytest.mark.timed

WANTED = parse(f"reg.io/a@sha256:{HEX}")
LOCK = f"{key_of(WANTED.canonical())}.{image_site.KIND}"
OTHER = ImageProducer("n9", 99, 8, "2026-01-01T00:00:00Z")


def never(*_: object) -> NoReturn:
    raise AssertionError("started")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return what happens, one after another, when imports are started; nothing after the last."""
    deeds: list[Callable[[], object]] = []
    monkeypatch.setattr(detached, "start", lambda _argv, **_: deeds.pop(0)() if deeds else None)
    return deeds


@pytest.fixture
def at_work(site: Site) -> Iterator[None]:
    assert published.begin(site.store.path, LOCK, OTHER, "test") == ""
    yield
    published.end(site.store.path, LOCK)


def asked(site: Site) -> list[ImportRequest]:
    return [request for _, request in requests.waiting(site.paths)]


def told(site: Site, error: WarmstartError, uid: int = -1) -> None:
    published.remember(site.store.path, LOCK, RememberedFailure.of(error, uid), "test")


def test_a_missing_image_is_asked_for_and_awaited(site: Site, started: list[Callable[[], object]]) -> None:
    started.append(lambda: put_image(site))
    site = site._replace(charged=Charged("alice", 2001))
    found = single_flight.obtain(WANTED, site, after(5))
    assert (found.how, found.digest) == ("waited", f"sha256:{HEX}")
    (request,) = asked(site)
    assert request[:7] == (WANTED.canonical(), image_site.KIND, "", "alice", 2001, "", 7)


def test_a_warm_image_asks_for_nothing(site: Site) -> None:
    put_image(site)
    assert single_flight.obtain(WANTED, site, after(5)).how == "reused"
    assert not Path(site.paths.errands).exists()


def test_a_hook_with_no_time_left_asks_nevertheless(site: Site, started: list[Callable[[], object]]) -> None:
    started.append(lambda: put_image(site))
    expired(site, seconds=0.9)  # the last look is due before the first
    assert len(asked(site)) == 1
    assert single_flight.obtain(WANTED, site, after(0.9)).how == "reused"


@pytest.mark.usefixtures("at_work")
def test_nothing_is_asked_for_where_somebody_is_at_work(site: Site, started: list[Callable[[], object]]) -> None:
    started.append(never)
    now = OTHER._replace(phase="fetching it", done=3 << 20)
    published.announce(site.store.path, LOCK, now, "test")
    with pytest.raises(ImageWaitExpired) as raised:
        single_flight.obtain(WANTED, site, after(1.2))
    assert raised.value.fields["producer"] == (
        "imported by pid 99 on n9 for job 8 since 2026-01-01T00:00:00Z, now fetching it, 3MiB so far"
    )
    assert asked(site) == []


def test_a_producer_that_died_is_replaced(site: Site, started: list[Callable[[], object]]) -> None:
    (Path(site.store.path) / "images" / "locks").mkdir(parents=True)
    (Path(site.store.path) / "images" / "locks" / f"{LOCK}.producer").write_text("{}")
    started.append(lambda: put_image(site))
    assert single_flight.obtain(WANTED, site, after(5)).how == "waited"


@pytest.mark.usefixtures("started")
def test_a_dead_producers_word_is_told_to_nobody(site: Site) -> None:
    published.begin(site.store.path, LOCK, OTHER, "test")
    record = Path(site.store.path) / "images" / "locks" / f"{LOCK}.producer"
    data = record.read_bytes()
    published.end(site.store.path, LOCK)
    record.write_bytes(data)
    assert "pid 99" not in str(expired(site))


def test_all_who_wait_hear_why_it_failed(site: Site, started: list[Callable[[], object]]) -> None:
    for problem in ("refused", "too many requests"):
        started.append(lambda problem=problem: told(site, RegistryUnreachable(image="reg.io/a", problem=problem)))  # type: ignore[misc]
        with pytest.raises(RegistryUnreachable) as raised:
            single_flight.obtain(WANTED, site, after(30))
        assert raised.value.fields["problem"] == problem


def test_what_is_definitive_is_not_tried_again(site: Site, started: list[Callable[[], object]]) -> None:
    started.append(never)
    told(site, ImageNotFound(image="reg.io/a"))
    with pytest.raises(ImageNotFound):
        single_flight.obtain(WANTED, site, after(5))


def test_a_quota_is_its_users_matter(site: Site, started: list[Callable[[], object]]) -> None:
    refusal = ImageQuotaExceeded(bytes=1, user="bob", taken=1, quota=1)
    started.append(lambda: told(site, refusal, 2002))
    alice = site._replace(charged=Charged("alice", 2001))
    with pytest.raises(ImageWaitExpired):
        single_flight.obtain(WANTED, alice, after(1.2))
    started.append(lambda: told(site, refusal, 2001))
    with pytest.raises(ImageQuotaExceeded):
        single_flight.obtain(WANTED, alice, after(5))


def test_only_roots_own_word_breaks_a_node(site: Site, started: list[Callable[[], object]]) -> None:
    broken = WorkspaceUnusable(path="/w", problem="read-only")
    started.append(lambda: told(site, broken))
    with pytest.raises(ImportFailed, match="read-only"):
        single_flight.obtain(WANTED, site, after(5))
    (request,) = asked(site)
    started.append(lambda: requests.remember_failure(site.paths, request.image, RememberedFailure.of(broken)))
    with pytest.raises(WorkspaceUnusable):
        single_flight.obtain(WANTED, site, after(5))


def test_a_hook_that_died_before_it_started_the_import(site: Site, started: list[Callable[[], object]]) -> None:
    query = query_by_rules(WANTED, site.rules, site.recipe)
    assert requests.submit(site.paths, ImportRequest.of(query, site)) == ""
    started.append(lambda: put_image(site))
    assert single_flight.obtain(WANTED, site, after(5)).how == "waited"


@pytest.mark.parametrize(
    ("waits", "said"),
    [(False, "its import on node n1 is starting"), (True, "waits on node n1, where 2 run at a time")],
)
@pytest.mark.usefixtures("started")
def test_the_deadline_says_what_the_request_waits_for(site: Site, waits: bool, said: str) -> None:
    query, errands = query_by_rules(WANTED, site.rules, site.recipe), Errands(site.paths, IMPORTS)
    requests.submit(site.paths, ImportRequest.of(query, site))
    if not waits:
        errands.begin(errands.all()[0])
    assert said in str(expired(site))


def test_who_is_in_line_starts_nothing(site: Site, started: list[Callable[[], object]]) -> None:
    started.append(never)
    with errand.at_work(site.paths, IMPORTS.name):
        expired(site)
        assert len(asked(site)) == 1


def test_a_user_with_too_many_requests_is_told(
    site: Site, started: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job waits on, since another may bring the image; then it hears why nothing was asked for."""
    monkeypatch.setattr(requests, "IMPORTS", IMPORTS._replace(most=0))
    started.append(never)
    assert "0 imports of the policy wait on node n1 already" in str(expired(site))


def expired(site: Site, seconds: float = 1.2) -> ImageWaitExpired:
    with pytest.raises(ImageWaitExpired) as raised:
        single_flight.obtain(WANTED, site, after(seconds))
    return raised.value


@pytest.mark.parametrize(("number", "error"), [(errno.EROFS, StateUnusable), (errno.ENOSPC, StateFull)])
def test_a_request_that_cannot_be_written_is_said(
    site: Site, monkeypatch: pytest.MonkeyPatch, number: int, error: type[WarmstartError]
) -> None:
    monkeypatch.setattr(errand, "replace_file", refusing(number))
    with pytest.raises(error, match=os.strerror(number)):
        single_flight.obtain(WANTED, site, after(5))
    assert asked(site) == []


@pytest.mark.usefixtures("started")
def test_requests_that_cannot_be_read_are_the_nodes_fault(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errand, "names_in", refusing(errno.EIO))
    with pytest.raises(StateUnusable, match=os.strerror(errno.EIO)):
        single_flight.obtain(WANTED, site, after(0.9))


def refusing(number: int) -> Callable[..., NoReturn]:
    """Return a function that fails with an error of the operating system."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return refuse


def test_waiters_probe_seldom(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detached, "start", lambda *_, **__: None)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(ImageWaitExpired):
        single_flight.obtain(WANTED, site, after(1.3))
    calls: list[str] = site.store.worker.calls  # type: ignore[attr-defined]
    assert calls.count("is_at_work") == 2 < calls.count("find")  # the second one for the message


def test_a_job_that_is_over_waits_no_longer(site: Site, at_work: None) -> None:
    answers = iter([False, False, True])
    watched = site._replace(job_end=lambda: lambda _: next(answers))
    with pytest.raises(JobOver, match=r"cancelled or requeued while it waited for image reg\.io/a@sha256"):
        single_flight.obtain(WANTED, watched, after(60))
    put_image(site)
    assert single_flight.obtain(WANTED, watched, after(60)).how == "reused"


def test_a_warm_job_is_not_watched(site: Site) -> None:
    put_image(site)
    assert single_flight.obtain(WANTED, site._replace(job_end=never), after(60)).how == "reused"

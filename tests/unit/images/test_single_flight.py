"""What a hook does for an image: it looks, asks for an import once, waits, and hears how it ended; it never imports."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib import image_site
from tests.lib.image_site import HEX, put_image, release
from warmstart import queue as queues
from warmstart.errors import WarmstartError
from warmstart.host import detached
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import FileSystemBroken
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
from warmstart.images.imports.job_end import JobOver
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.images.imports.waiting import ImageWaitExpired, name_images
from warmstart.images.query import Site, query_by_rules
from warmstart.images.reference import Reference, parse
from warmstart.images.store import published, uses
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.eviction import ImageQuotaExceeded
from warmstart.images.store.layout import Charged, Found, ImageQuery, key_of
from warmstart.images.store.published import ImageProducer, RememberedFailure
from warmstart.queue import Queue
from warmstart.run.state import StateFull
from warmstart.store.layout import StoreFailed, StoreFull

WANTED = parse(f"reg.io/a@sha256:{HEX}")
LOCK = f"{key_of(WANTED.canonical())}.{image_site.KIND}"
OTHER = ImageProducer("n9", 99, 8, "2026-01-01T00:00:00Z")
TAG = parse("reg.io/a:1")
DIGEST, NEW = f"sha256:{HEX}", f"sha256:{'cd' * 32}"
Deeds = list[Callable[[], object]]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass where somebody sleeps, and nowhere else."""
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Deeds:
    """Return what happens, one after another, when imports are started; nothing after the last."""
    deeds: Deeds = []
    monkeypatch.setattr(detached, "start", lambda _argv, **_: deeds.pop(0)() if deeds else None)
    return deeds


@pytest.fixture
def at_work(site: Site) -> Iterator[None]:
    """Let another node import the image."""
    assert published.begin(site.store.path, LOCK, OTHER, "test") == ""
    yield
    published.end(site.store.path, LOCK)
    release()


@pytest.fixture
def old(site: Site) -> Site:
    """Return a site that has the image that the tag meant last; the tag's time to live is over."""
    put_image(site)
    published.point(site.store.path, query_of(site, TAG).key, DIGEST, time.time() - 1000, "test")
    return site


def never(*_: object) -> NoReturn:
    raise AssertionError("started")


def query_of(site: Site, reference: Reference = WANTED) -> ImageQuery:
    return query_by_rules(reference, site.rules, site.recipe)


def asked(site: Site) -> list[ImportRequest]:
    return [request for _, request in requests.waiting(site.paths)]


def told(site: Site, error: WarmstartError, uid: int = -1, lock: str = LOCK) -> None:
    """Tell all nodes how an import failed."""
    published.remember(site.store.path, lock, RememberedFailure.of(error, uid), "test")


def expired(site: Site, seconds: float = 1.2) -> str:
    """Wait for the image in vain."""
    with pytest.raises(ImageWaitExpired) as raised:
        single_flight.obtain(WANTED, site, after(seconds))
    return str(raised.value)


def refusing(number: int) -> Callable[..., NoReturn]:
    """Return a function that fails with an error of the operating system."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return refuse


# An image that is there.


def test_a_warm_image_costs_one_call(site: Site) -> None:
    put_image(site)
    site = site._replace(job_end=never)
    found = single_flight.obtain(WANTED, site, after(5))
    assert (found.how, found.digest, found.size, found.waited_s) == ("reused", DIGEST, 4096, 0.0)
    assert site.store.worker.calls == ["find", "record", "find"]  # type: ignore[attr-defined]
    single_flight.obtain(WANTED, site, after(5))
    assert site.store.worker.calls[3:] == ["find"]  # type: ignore[attr-defined]
    assert not Path(site.paths.queue).exists()


def test_an_image_that_is_evicted_while_its_use_is_recorded_is_asked_for(
    site: Site, monkeypatch: pytest.MonkeyPatch, started: Deeds
) -> None:
    put_image(site)
    started.append(lambda: put_image(site))
    record = uses.record

    def evicted_first(store: str, name: str, node: str) -> None:
        (Path(store) / "images" / f"{name}.sqsh").unlink(missing_ok=True)
        record(store, name, node)

    monkeypatch.setattr(uses, "record", evicted_first)
    assert single_flight.obtain(WANTED, site, after(5)).how == "waited"
    assert started == []


def hiccups(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let the store fail a few times, and then answer."""
    left, real = iter(range(times)), ImageStoreClient.find

    def find(client: ImageStoreClient, query: ImageQuery, deadline: Deadline, digest: str = "") -> Found | None:
        if next(left, None) is not None:
            raise StoreFailed(what="find the image", problem="Transport endpoint is not connected")
        return real(client, query, deadline, digest)

    monkeypatch.setattr(ImageStoreClient, "find", find)


def test_a_store_that_hiccups_is_asked_again_as_long_as_there_is_patience(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_image(site)
    hiccups(monkeypatch, 3)
    assert single_flight.obtain(WANTED, site._replace(patience_s=5), after(60)).how == "reused"
    hiccups(monkeypatch, 1000)
    with pytest.raises(StoreFailed):
        single_flight.obtain(WANTED, site._replace(patience_s=5), after(60))
    with pytest.raises(JobOver):  # its prolog would hold the node
        single_flight.obtain(WANTED, site._replace(patience_s=60, job_end=lambda: lambda _: True), after(60))


# One that is missing.


def test_a_missing_image_is_asked_for_and_awaited(site: Site, started: Deeds) -> None:
    started.append(lambda: put_image(site))
    found = single_flight.obtain(WANTED, site._replace(charged=Charged("alice", 2001)), after(5))
    assert (found.how, found.digest) == ("waited", DIGEST)
    (request,) = asked(site)
    assert request[:7] == (WANTED.canonical(), image_site.KIND, "", "alice", 2001, "", 7)


def test_a_hook_with_no_time_left_asks_nevertheless(site: Site, started: Deeds) -> None:
    """Its job fails or comes back; the import that it asked for is the next one's image."""
    started.append(lambda: put_image(site))
    expired(site, seconds=0.9)  # the last look is due before the first
    assert len(asked(site)) == 1
    assert single_flight.obtain(WANTED, site, after(0.9)).how == "reused"


@pytest.mark.usefixtures("at_work")
def test_nothing_is_asked_for_where_somebody_is_at_work(site: Site, started: Deeds) -> None:
    started.append(never)
    published.announce(site.store.path, LOCK, OTHER._replace(phase="fetching it", done=3 << 20), "test")
    assert ("imported by pid 99 on n9 for job 8 since 2026-01-01T00:00:00Z, now fetching it, 3MiB so far") in expired(
        site
    )
    assert asked(site) == []


def test_a_producer_that_died_is_replaced_and_its_word_told_to_nobody(site: Site, started: Deeds) -> None:
    """Its record stays, its lock does not."""
    published.begin(site.store.path, LOCK, OTHER, "test")
    record = Path(site.store.path) / "images" / "locks" / f"{LOCK}.producer"
    data = record.read_bytes()
    published.end(site.store.path, LOCK)
    release()
    record.write_bytes(data)
    assert "pid 99" not in expired(site)
    started.append(lambda: put_image(site))
    assert single_flight.obtain(WANTED, site, after(5)).how == "waited"


def test_all_who_wait_hear_why_it_failed_and_the_next_job_tries_again(site: Site, started: Deeds) -> None:
    for problem in ("refused", "too many requests"):
        error = RegistryUnreachable(image="reg.io/a", problem=problem)
        started.append(lambda error=error: told(site, error))  # type: ignore[misc]
        with pytest.raises(RegistryUnreachable, match=problem):
            single_flight.obtain(WANTED, site, after(30))


def test_a_quota_is_its_users_matter(site: Site, started: Deeds) -> None:
    """Another user's import fails for it, and this user's is tried on its own."""
    refusal = ImageQuotaExceeded(bytes=1, user="bob", taken=1, quota=1)
    started.append(lambda: told(site, refusal, 2002))
    alice = site._replace(charged=Charged("alice", 2001))
    expired(alice)
    started.append(lambda: told(site, refusal, 2001))
    with pytest.raises(ImageQuotaExceeded):
        single_flight.obtain(WANTED, alice, after(5))


def test_only_roots_own_word_breaks_a_node(site: Site, started: Deeds) -> None:
    """What the import on this node found is believed; the store, whose owner others may control, is not."""
    broken = FileSystemBroken(path="/w", problem="read-only")
    started.append(lambda: told(site, broken))
    with pytest.raises(ImportFailed, match="read-only"):
        single_flight.obtain(WANTED, site, after(5))
    (request,) = asked(site)
    started.append(lambda: requests.remember_failure(site.paths, request.image, RememberedFailure.of(broken)))
    with pytest.raises(FileSystemBroken):
        single_flight.obtain(WANTED, site, after(5))


@pytest.mark.parametrize(
    ("waits", "said"),
    [(False, "its import on node n1 is starting"), (True, "waits on node n1, where 2 run at a time")],
)
def test_the_deadline_says_what_a_request_that_was_there_waits_for(site: Site, waits: bool, said: str) -> None:
    """No producer has been elected: its process has just begun, or it is another one's turn."""
    requests.submit(site.paths, ImportRequest.of(query_of(site), site))
    queue = Queue(site.paths, IMPORTS)
    if not waits:
        queue.begin(queue.all()[0])
    assert said in expired(site)


def test_who_is_in_line_starts_nothing(site: Site, started: Deeds) -> None:
    """As long as the process is at work that begins one import after the other."""
    started.append(never)
    with queues.at_work(site.paths, IMPORTS.name):
        expired(site)
        assert len(asked(site)) == 1


def test_a_user_with_too_many_requests_is_told(site: Site, started: Deeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job waits on, since another may bring the image; then it hears why nothing was asked for."""
    monkeypatch.setattr(requests, "IMPORTS", IMPORTS._replace(most=0))
    started.append(never)
    assert "0 imports of the policy wait on node n1 already" in expired(site)


@pytest.mark.parametrize(
    ("function", "number", "error"),
    [
        ("replace_file", errno.EROFS, FileSystemBroken),
        ("replace_file", errno.ENOSPC, StateFull),
        ("names_in", errno.EIO, FileSystemBroken),
    ],
)
def test_requests_that_cannot_be_written_or_read(
    site: Site, monkeypatch: pytest.MonkeyPatch, function: str, number: int, error: type[WarmstartError]
) -> None:
    """A broken file system of the node's state is the node's fault, a full one is not, as for the record."""
    monkeypatch.setattr(queues, function, refusing(number))
    with pytest.raises(error, match=os.strerror(number)):
        single_flight.obtain(WANTED, site, after(5))


@pytest.mark.usefixtures("at_work")
def test_a_job_that_is_over_waits_no_longer(site: Site) -> None:
    """The import goes on. An image that is there is given in any case."""
    answers = iter([False, False, True])
    watched = site._replace(job_end=lambda: lambda _: next(answers))
    with pytest.raises(JobOver, match=r"cancelled or requeued while it waited for image reg\.io/a@sha256"):
        single_flight.obtain(WANTED, watched, after(60))
    put_image(site)
    assert single_flight.obtain(WANTED, watched, after(60)).how == "reused"


# The image that the tag meant last is in the store.


OUTAGE = RegistryUnreachable(image="reg.io/a:1", problem="no answer")
FULL = StoreFull(what="image reg.io/a:1 in the store /s", problem="No space left on device")
PAGE = RegistryAnswerUnusable(image="reg.io/a:1", problem="a page")


@pytest.mark.parametrize("error", [OUTAGE, FULL, PAGE])
def test_a_failure_that_says_nothing_of_the_tag_leaves_the_last_image(
    old: Site, started: Deeds, monkeypatch: pytest.MonkeyPatch, error: WarmstartError
) -> None:
    """The job is told why; the next one does not ask, until that is long ago."""
    image = ImportRequest.of(query_of(old, TAG), old).image
    started.append(lambda: requests.remember_failure(old.paths, image, RememberedFailure.of(error)))
    found = single_flight.obtain(TAG, old, after(5))
    assert (found.digest, found.how) == (DIGEST, "stale")
    assert re.fullmatch(rf"its registry said so \d\S* ago; {re.escape(str(error))}", found.reason)
    started.append(never)
    assert single_flight.obtain(TAG, old, after(5)).how == "stale"
    started[:] = [lambda: told(old, OUTAGE, lock=query_of(old, TAG).lock)]
    monkeypatch.setattr(published, "REMEMBERED_S", 0)
    assert single_flight.obtain(TAG, old, after(5)).reason.endswith(f" ago; {OUTAGE}")
    assert started == []


@pytest.mark.parametrize(
    "error",
    [
        ImageNotFound(image="reg.io/a:1"),
        ImageForbidden(image="reg.io/a:1", problem="401"),
        ImageNotForMachine(image="reg.io/a:1", machine="x"),
    ],
)
def test_a_clear_answer_is_believed_now_and_for_a_while(old: Site, started: Deeds, error: WarmstartError) -> None:
    started += [lambda: told(old, error, lock=query_of(old, TAG).lock), never]
    for _ in range(2):
        with pytest.raises(type(error)):
            single_flight.obtain(TAG, old, after(5))


@pytest.mark.parametrize(
    "error", [ImportFailed(image="i", program="p", problem="x"), ImageNotForMachine(image="i", machine="x")]
)
def test_the_old_image_of_a_tag_that_means_another_now_is_not_given_away(
    old: Site, started: Deeds, error: WarmstartError
) -> None:
    query = query_of(old, TAG)
    name_images(error, query, waiting.known(query, old, after(5)), NEW)
    started.append(lambda: told(old, error, lock=query.lock))
    with pytest.raises(type(error)) as raised:
        single_flight.obtain(TAG, old, after(5))
    assert str(raised.value).endswith(
        f"; the tag means {NEW} now, and reg.io/a@{DIGEST}, which it meant before, is in the store"
    )
    assert str(raised.value).count(NEW) == 1


def test_an_error_that_this_release_does_not_know_keeps_what_it_says_of_the_tag(old: Site, started: Deeds) -> None:
    later = RememberedFailure("code-of-tomorrow", {waiting.NEW_DIGEST: NEW, "also": "; x"}, "odd; x")
    started.append(lambda: published.remember(old.store.path, query_of(old, TAG).lock, later, "test"))
    with pytest.raises(ImportFailed, match=r"odd; x$"):
        single_flight.obtain(TAG, old, after(5))


@pytest.mark.parametrize("digest", ["", NEW])
def test_the_end_of_the_wait_for_what_a_tag_means_now(old: Site, digest: str) -> None:
    """Nobody has found that out: the last image. Somebody imports what it means now: no image yet."""
    lock = query_of(old, TAG).lock
    assert published.begin(old.store.path, lock, OTHER._replace(digest=digest), "test") == ""
    try:
        if digest:
            with pytest.raises(ImageWaitExpired, match=f"the tag means {NEW} now, and reg.io/a@{DIGEST}"):
                single_flight.obtain(TAG, old, after(1.2))
        else:
            found = single_flight.obtain(TAG, old, after(1.2))
            assert (found.how, found.digest) == ("stale", DIGEST)
            assert "still missing" in found.reason
    finally:
        published.end(old.store.path, lock)
        release()


def test_a_last_image_that_is_damaged_is_none(old: Site, started: Deeds) -> None:
    (Path(old.store.path) / "images" / f"{HEX}.{image_site.KIND}.sqsh").write_bytes(b"x")
    started.append(lambda: told(old, OUTAGE, lock=query_of(old, TAG).lock))
    with pytest.raises(RegistryUnreachable):
        single_flight.obtain(TAG, old, after(5))

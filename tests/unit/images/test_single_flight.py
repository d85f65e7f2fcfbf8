"""Single flight: what a hook does for an image that is there, and for one that has to be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.image_site import HEX, put_image
from warmstart.host.deadline import Deadline, after
from warmstart.images import single_flight
from warmstart.images.imports import waiting
from warmstart.images.imports.job_end import JobOver
from warmstart.images.query import Obtained, Site
from warmstart.images.reference import parse
from warmstart.images.store import uses
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import Found, ImageQuery
from warmstart.store.layout import StoreFailed

BY_DIGEST = parse(f"reg.io/a@sha256:{HEX}")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(_self: waiting.Wait, _deadline: Deadline) -> Obtained:
        raise AssertionError("waits")

    monkeypatch.setattr(waiting.Wait, "until", waits)


def test_a_warm_image_costs_one_call(site: Site) -> None:
    put_image(site)
    found = single_flight.obtain(BY_DIGEST, site, after(5))
    assert (found.how, found.digest, found.size, found.waited_s) == ("reused", f"sha256:{HEX}", 4096, 0.0)
    assert site.store.worker.calls == ["find", "record", "find"]  # type: ignore[attr-defined]
    single_flight.obtain(BY_DIGEST, site, after(5))
    assert site.store.worker.calls[3:] == ["find"]  # type: ignore[attr-defined]


def test_an_image_that_goes_while_its_use_is_recorded_is_asked_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    put_image(site)
    record = uses.record

    def evicted_first(store: str, name: str, node: str) -> None:
        (Path(store) / "images" / f"{name}.sqsh").unlink(missing_ok=True)
        record(store, name, node)

    monkeypatch.setattr(uses, "record", evicted_first)
    with pytest.raises(AssertionError, match="waits"):
        single_flight.obtain(BY_DIGEST, site, after(5))


class Hiccup:
    """A store that fails a few times, and then answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.left, self.pauses = times, 0
        real = ImageStoreClient.find
        monkeypatch.setattr(single_flight, "PAUSE_S", 0.01)

        def find(client: ImageStoreClient, query: ImageQuery, deadline: Deadline, digest: str = "") -> Found | None:
            if self.left:
                self.left -= 1
                raise StoreFailed(what="find the image", problem="Transport endpoint is not connected")
            return real(client, query, deadline, digest)

        monkeypatch.setattr(ImageStoreClient, "find", find)


def test_a_store_that_hiccups_is_asked_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    put_image(site)
    Hiccup(monkeypatch, 3)
    assert single_flight.obtain(BY_DIGEST, site._replace(patience_s=5), after(5)).how == "reused"
    store = Hiccup(monkeypatch, 10_000)
    with pytest.raises(StoreFailed):
        single_flight.obtain(BY_DIGEST, site._replace(patience_s=0.1), after(5))
    assert store.left < 10_000 - 3


def test_a_job_that_is_over_meanwhile_waits_for_no_store(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    Hiccup(monkeypatch, 10_000)
    over = site._replace(patience_s=60, job_end=lambda: lambda _: True)
    with pytest.raises(JobOver):
        single_flight.obtain(BY_DIGEST, over, after(60))

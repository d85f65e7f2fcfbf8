"""`warmstart images` and imports under way: how far they are, who waits for a turn, and how one is cancelled."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lib.node import Node, OsAs
from warmstart import session as sessions
from warmstart.cli import image_store
from warmstart.images.imports import requests
from warmstart.images.imports.requests import ImportRequest
from warmstart.images.store import published
from warmstart.images.store.published import ImageProducer

REFERENCE = "reg.example.com/a:1"
LOCK = "reg.example.com+a=1.x86_64.oci2"
PRODUCER = ImageProducer("n9", 99, 8, "2026-01-31T09:30:00Z", "fetching it", 1 << 30)


@pytest.fixture
def site(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(image_store, "os", OsAs(0))
    os.makedirs(node.paths.state)
    return node


@pytest.fixture
def importing(site: Node) -> Iterator[None]:
    assert published.begin(str(site.store), LOCK, PRODUCER, "test") == ""
    yield
    published.end(str(site.store), LOCK)


def ask(site: Node, reference: str, uid: int = 1000) -> ImportRequest:
    request = ImportRequest(
        reference=reference, kind="x86_64.oci2", private="", user="ws-alice", uid=uid,
        cluster="test", job_id=7, asked=time.time(),
    )  # fmt: skip
    assert requests.submit(site.paths, request) == ""
    return request


def coming(site: Node) -> Any:  # noqa: ANN401 - JSON
    return site.json("images", "list", "--imports")


@pytest.mark.usefixtures("importing")
def test_an_import_is_listed_with_its_progress(site: Node) -> None:
    """Who, since when, and how far: in the list, and for the image itself."""
    (known,) = coming(site)
    assert (known["reference"], known["node"], known["job_id"]) == (REFERENCE, "n9", 8)
    assert (known["since"], known["done"]) == ("2026-01-31T09:30:00Z", 1 << 30)
    listed = site.command("images", "list").stdout
    assert "fetching it" in listed
    assert listed.splitlines()[1].split()[3:5] == ["2026-01-31T09:30:00Z", "1GiB"]
    shown = site.command("images", "show", "docker://reg.example.com/a:1")
    assert (shown.exit_code, "1GiB" in shown.stdout) == (0, True)
    assert [known["phase"] for known in site.json("images", "show", REFERENCE)["imports"]] == ["fetching it"]


@pytest.mark.usefixtures("importing")
def test_what_waits_for_its_turn_is_listed_too(site: Node) -> None:
    ask(site, REFERENCE)
    for uid in (1000, 1001):
        ask(site, "reg.example.com/b:1", uid)
    assert [(known["reference"], known["phase"]) for known in coming(site)] == [
        (REFERENCE, "fetching it"),
        ("reg.example.com/b:1", image_store.WAITS),
    ]


@pytest.mark.usefixtures("importing")
def test_others_than_root_see_no_imports(site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_store, "os", OsAs(1000))
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    refused = site.command("images", "list", "--imports")
    assert (refused.exit_code, "needs root: warmstart images list --imports" in refused.stderr) == (2, True)


def test_a_request_is_cancelled(site: Node) -> None:
    request = ask(site, REFERENCE)
    ask(site, REFERENCE, uid=1001)
    done = site.command("images", "cancel", REFERENCE)
    assert (done.exit_code, "cancelled" in done.stdout) == (0, True)
    assert requests.waiting(site.paths) == []
    told = requests.last_failure(site.paths, request.image)
    assert told
    assert (told.code, "it was cancelled" in told.text) == ("image-import-abandoned", True)
    assert [event["image"] for event in site.events("image.import-cancelled")] == [REFERENCE]


@pytest.mark.usefixtures("importing")
def test_the_import_of_another_host_is_not_cancelled_here(site: Node) -> None:
    other = site.command("images", "cancel", REFERENCE)
    assert (other.exit_code, "n9: cancel it there" in other.stderr) == (1, True)
    assert site.command("images", "cancel", "reg.example.com/b:1").exit_code == 1

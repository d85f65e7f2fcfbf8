"""A background import by its request: what it publishes, whom it tells of a failure, and when it is tried again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.lib.node import NODE, Node
from tests.lib.superblocks import image
from warmstart.attempts import imports as imports_attempt
from warmstart.entry import background
from warmstart.errors import WarmstartError
from warmstart.images import choice
from warmstart.images.importers.base import ImageNotFound, RegistryUnreachable
from warmstart.images.imports import making, requests
from warmstart.images.imports.making import Flight
from warmstart.images.imports.requests import IMPORTS, MOST_ATTEMPTS, ImportRequest
from warmstart.images.query import Obtained, as_obtained, query_by_rules
from warmstart.images.reference import parse
from warmstart.images.store.eviction import ImageQuotaExceeded
from warmstart.images.store.layout import image_name
from warmstart.policy.keys import Credentials, Match, PrivateRepository
from warmstart.queue import Item, Queue

DIGEST = f"sha256:{'ab' * 32}"
IMAGE = f"reg.example.com/a@{DIGEST}"


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[int, None], NoReturn]]:
    """Leave the signals of this process alone. Return the handlers of SIGTERM."""
    found: list[Callable[[int, None], NoReturn]] = []
    monkeypatch.setattr(signal, "signal", lambda _number, handler: found.append(handler))
    return found


def ask(site: Node, /, attempts: int = 0, **changes: Any) -> ImportRequest:  # noqa: ANN401 - fields of ImportRequest
    """Write a request as a hook of job 7 does."""
    os.makedirs(site.paths.state, exist_ok=True)
    kind = f"{os.uname().machine}.{choice.recipe(site.policy.images.importer)}"
    request = ImportRequest(
        reference=IMAGE, kind=kind, private="", user="ws-alice", uid=os.getuid(),
        cluster="test", job_id=7, asked=time.time(),
    )._replace(**changes)  # fmt: skip
    Queue(site.paths, IMPORTS).put(Item(str(request.uid), int(request.asked), attempts, request.key), request)
    return request


def left(site: Node) -> list[ImportRequest]:
    return [request for _, request in requests.waiting(site.paths)]


def run(site: Node, request: ImportRequest) -> int:
    return background.main(site.installation.prefix, [IMPORTS.name, NODE, request.key])


def imports(monkeypatch: pytest.MonkeyPatch, deed: Callable[[Flight], Obtained]) -> list[Flight]:
    """Stand in for the import; return what it is called with."""
    flights: list[Flight] = []

    def make(flight: Flight) -> Obtained:
        flights.append(flight)
        return deed(flight)

    monkeypatch.setattr(making, "_import", make)
    return flights


def publish(flight: Flight) -> Obtained:
    query, site, deadline = flight[:3]
    Path(site.store.path, "images", f"{image_name(DIGEST, query.kind)}.sqsh").write_bytes(image())
    flight.tell("fetching it", 5)
    found = as_obtained(site.store.find(query, deadline, DIGEST), "imported")
    assert found
    return found


def fail(error: WarmstartError) -> Callable[[Flight], Obtained]:
    def raise_it(_: Flight) -> NoReturn:
        raise error

    return raise_it


def test_an_import_ends_with_the_image_and_without_its_request(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    request, flights = ask(node), imports(monkeypatch, publish)
    assert run(node, request) == 0
    assert left(node) == []
    assert [(event["job_id"], event["image"]) for event in node.events("image.imported")] == [(7, IMAGE)]
    (flight,) = flights
    assert (flight.site.requester.job_id, flight.site.charged) == (7, ("ws-alice", os.getuid()))


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (ImageNotFound(image=IMAGE), False),
        (RegistryUnreachable(image=IMAGE, problem="refused"), True),
        (ZeroDivisionError(), True),
    ],
)
def test_a_failure_is_told_and_tried_again_if_that_may_help(
    node: Node, monkeypatch: pytest.MonkeyPatch, error: WarmstartError, stays: bool
) -> None:
    imports(monkeypatch, fail(error))
    request = ask(node)
    assert run(node, request) == 0
    (event,) = node.events("image.import-failed")
    assert (event["again"], event["attempt"]) == (stays, 1)
    failure = requests.last_failure(node.paths, request.image)
    assert failure is not None
    assert failure.code == event["error"]["code"]
    assert left(node) == [request] * stays
    assert requests.submit(node.paths, request._replace(asked=time.time())) == ""
    assert len(Queue(node.paths, IMPORTS).due()) == 1
    notes = list(node.store.glob("images/failed/*.json"))
    assert len(notes) == (not isinstance(error, ZeroDivisionError))


def test_a_failure_is_forgotten_when_the_image_is_here(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    imports(monkeypatch, fail(RegistryUnreachable(image=IMAGE, problem="refused")))
    request = ask(node)
    run(node, request)
    assert requests.failures(node.paths)
    imports(monkeypatch, publish)
    assert requests.submit(node.paths, request._replace(asked=time.time())) == ""
    assert run(node, request) == 0
    assert requests.failures(node.paths) == []


def test_the_last_attempt_ends_the_request(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    imports(monkeypatch, fail(RegistryUnreachable(image=IMAGE, problem="refused")))
    run(node, ask(node, attempts=MOST_ATTEMPTS - 1))
    assert left(node) == []


@pytest.mark.parametrize(
    ("counted", "why"),
    [("low 0\noom_kill 3\n", "3 processes for want of memory"), ("oom_kill 0\n", "5 times"), (None, "5 times")],
)
def test_an_import_that_has_died_too_often_is_given_up(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, counted: str | None, why: str
) -> None:
    monkeypatch.setattr(imports_attempt, "MEMORY_EVENTS", str(tmp_path / "memory.events"))
    if counted is not None:
        (tmp_path / "memory.events").write_text(counted)
    flights = imports(monkeypatch, publish)
    request = ask(node, attempts=MOST_ATTEMPTS)
    run(node, request)
    assert (flights, left(node)) == ([], [])
    failure = requests.last_failure(node.paths, request.image)
    assert failure
    assert (failure.code, "has died 5 times" in failure.text) == ("image-import-failed", True)
    assert why in failure.text


def others(site: Node, request: ImportRequest) -> list[ImportRequest]:
    """Have two more users ask for the same image, and one for another one."""
    found = [ask(site, uid=uid, user=f"u{uid}", fresh_after=time.time()) for uid in (5001, 5002)]
    return [*found, ask(site, uid=5003, reference="reg.example.com/b:1")]


@pytest.mark.parametrize(
    ("error", "stay"),
    [(None, 0), (ImageNotFound(image=IMAGE), 0), (RegistryUnreachable(image=IMAGE, problem="refused"), 1)],
)
def test_one_import_is_made_for_all(
    node: Node, monkeypatch: pytest.MonkeyPatch, error: WarmstartError | None, stay: int
) -> None:
    flights = imports(monkeypatch, fail(error) if error else publish)
    request = ask(node)
    *_, other = others(node, request)
    run(node, request)
    assert len(flights) == 1
    assert left(node) == [*[request] * stay, other] or left(node) == [other, *[request] * stay]


@pytest.mark.parametrize("error", [ImageQuotaExceeded(bytes=1, user="a", taken=1, quota=1), None])
def test_what_concerns_one_user_ends_no_others_request(
    node: Node, monkeypatch: pytest.MonkeyPatch, error: WarmstartError | None
) -> None:
    request = ask(node)
    expected = others(node, request)
    imports(monkeypatch, fail(error) if error else publish)
    if error is None:
        query = query_by_rules(parse(IMAGE), node.policy.images, choice.recipe(node.policy.images.importer))
        folder = Path(node.store, "images")
        folder.mkdir()
        (folder / f"{image_name(DIGEST, query.kind)}.sqsh").write_bytes(image())
    run(node, request)
    assert sorted(left(node)) == sorted(expected)


@pytest.mark.threat(38, 39)
@pytest.mark.parametrize(
    ("changes", "code", "word"),
    [
        ({"reference": f"other.example.com/a@{DIGEST}"}, "image-refused", "other.example.com"),
        ({"private": "team"}, "credentials-unusable", "team"),
        ({"asked": time.time() - 8000}, "image-import-failed", "its time is over"),
        ({"reference": "UPPER"}, "image-reference-invalid", "UPPER"),
        ({"kind": "x86_64.other1"}, "image-import-failed", "another importer"),
    ],
)
def test_the_policy_in_force_decides(
    node: Node, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], code: str, word: str
) -> None:
    """It may have changed since the hook asked; a request is believed no further. Those who wait hear why."""
    flights, request = imports(monkeypatch, publish), ask(node, **changes)
    run(node, request)
    assert flights == []
    assert left(node) == ([request] if code == "credentials-unusable" else [])  # that may be put right
    failure = requests.last_failure(node.paths, request.image)
    assert failure
    assert word in failure.text
    assert [event["error"]["code"] for event in node.events("image.import-failed")] == [code]


def test_a_private_image_is_imported_with_the_sites_login(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = PrivateRepository("team", "reg.example.com/a", Match())
    rules = node.policy.images._replace(credentials=Credentials("/nowhere/credentials", (repository,)))
    node.write(node.policy._replace(images=rules))
    flights = imports(monkeypatch, publish)
    run(node, ask(node, private="team"))
    (flight,) = flights
    assert flight.site.store.path == str(node.store / "private" / "team")
    with pytest.raises(WarmstartError, match="credentials"):
        flight.site.importer()


def test_an_image_that_another_host_imports_is_left_to_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The election decides; this node's hooks wait for the other."""
    monkeypatch.setattr(making, "ELECTION_S", 0.0)
    flights = imports(monkeypatch, publish)
    monkeypatch.setattr(making, "begun", lambda *_: nullcontext())
    run(node, ask(node))
    assert flights == []
    assert left(node) == []
    assert node.events("image.import-failed") == []


def test_a_cancelled_import_says_so(
    node: Node, monkeypatch: pytest.MonkeyPatch, handlers: list[Callable[[int, None], NoReturn]]
) -> None:
    request = ask(node)

    def cancel(_: Flight) -> NoReturn:
        Queue(node.paths, IMPORTS).drop(request.key)
        handlers[-1](15, None)

    imports(monkeypatch, cancel)
    assert run(node, request) == 0
    assert "was cancelled" in node.events("image.import-failed")[0]["error"]["reason"]
    assert len(list(node.store.glob("images/failed/*.json"))) == 1  # other nodes' hooks hear it, too


def test_a_host_that_shuts_down_leaves_the_request(
    node: Node, monkeypatch: pytest.MonkeyPatch, handlers: list[Callable[[int, None], NoReturn]]
) -> None:
    request = ask(node)
    imports(monkeypatch, lambda _: handlers[-1](15, None))
    with pytest.raises(SystemExit):
        run(node, request)
    assert left(node) == [request]


def test_a_request_that_is_gone_or_damaged(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    flights, request, queue = imports(monkeypatch, publish), ask(node), Queue(node.paths, IMPORTS)
    Path(queue.directory, queue.all()[0].name).write_bytes(b"{")
    assert (run(node, request), run(node, request)) == (0, 0)
    assert (flights, queue.all()) == ([], [])


def test_nothing_is_imported_while_warmstart_is_off(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    flights = imports(monkeypatch, publish)
    request = ask(node)
    Path(node.installation.off_switch).touch()
    assert run(node, request) == 0
    assert flights == []
    assert left(node) == [request]

"""A background import by its request: what it publishes, whom it tells of a failure, and when it is tried again."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.support.entry_site import EntrySite
from tests.support.superblocks import image
from warmstart import wing
from warmstart.entry import import_image
from warmstart.errors import WarmstartError
from warmstart.images import choice
from warmstart.images.importers.base import ImageNotFound, RegistryUnreachable
from warmstart.images.imports import making, requests
from warmstart.images.imports.making import Flight
from warmstart.images.imports.requests import MOST_ATTEMPTS, ImportRequest
from warmstart.images.query import Obtained, Queue, as_obtained
from warmstart.images.store import published
from warmstart.images.store.layout import image_name
from warmstart.policy import compiled
from warmstart.policy.compiled import Credentials, PrivateRepository

DIGEST = f"sha256:{'ab' * 32}"
IMAGE = f"reg.example.com/a@{DIGEST}"
WATCHED = f"{IMAGE} for test"


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a wing is told of the import that it watches."""
    said: list[str] = []
    watcher = SimpleNamespace(progressed=lambda: said.append("progressed"), ended=lambda: said.append("ended"))

    def watching(_policy: object, _access: object, image: str, cluster: str) -> AbstractContextManager[object]:
        said.append(f"{image} for {cluster}")
        return nullcontext(watcher)

    part = SimpleNamespace(watching=watching)
    monkeypatch.setattr(compiled.Policy, "parts", lambda _, name: [f"w.{name}"])
    load = wing.load
    monkeypatch.setattr(wing, "load", lambda module: part if module == "w.importing" else load(module))
    return said


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[int, None], NoReturn]]:
    """Start no further imports, and leave the signals of this process alone. Return the handlers of SIGTERM."""
    found: list[Callable[[int, None], NoReturn]] = []
    monkeypatch.setattr(requests, "_start", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda _number, handler: found.append(handler))
    return found


def ask(site: EntrySite, **changes: Any) -> ImportRequest:  # noqa: ANN401 - fields of ImportRequest
    """Write a request as a hook of job 7 does, and start its first attempt."""
    os.makedirs(site.paths.state, exist_ok=True)
    kind = f"{os.uname().machine}.{choice.recipe(site.policy.images.importer)}"
    request = ImportRequest(
        reference=IMAGE, kind=kind, private="", user="ws-alice", uid=os.getuid(), account="",
        cluster="test", node="n1", job_id=7, run_id="0a1b2c3d", asked=time.time(), attempts=1, tried=time.time(),
    )._replace(**changes)  # fmt: skip
    assert requests.submit(Queue(site.paths.imports, "/nowhere", 2, 10**9), request) == ""
    return request


def run(site: EntrySite, request: ImportRequest) -> int:
    """Run the program for a request."""
    return import_image.main(site.installation.prefix, [request.key])


def imports(monkeypatch: pytest.MonkeyPatch, deed: Callable[[Flight], Obtained]) -> list[Flight]:
    """Stand in for the import; return what it is called with."""
    flights: list[Flight] = []

    def make(flight: Flight) -> Obtained:
        flights.append(flight)
        return deed(flight)

    monkeypatch.setattr(making, "_import", make)
    return flights


def publish(flight: Flight) -> Obtained:
    """Put the image into the store."""
    query, site, deadline = flight[:3]
    Path(site.store.path, "images", f"{image_name(DIGEST, query.kind)}.sqsh").write_bytes(image())
    flight.tell("fetching it", 5, 10, 1)
    found = as_obtained(site.store.find(query, deadline, DIGEST), "imported")
    assert found
    return found


def fail(error: WarmstartError) -> Callable[[Flight], Obtained]:
    """Return an import that fails."""

    def raise_it(_: Flight) -> NoReturn:
        raise error

    return raise_it


def test_an_import_ends_with_the_image_and_without_its_request(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    """The audit has its beginning and its end, under the job that asked; jobs that wait may start."""
    request = ask(entry_site)
    imports(monkeypatch, publish)
    assert run(entry_site, request) == 0
    assert requests.keys(entry_site.paths.imports) == []
    found = [entry_site.events(f"image.import{kind}") for kind in ("-started", "ed")]
    assert [[event["job_id"] for event in kind] for kind in found] == [[7], [7]]
    assert found[1][0]["image"] == IMAGE
    assert told == [WATCHED, "progressed", "ended"]


def test_the_scratch_is_the_imports_own(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epilog of the job that asked removes what the job's run left, and must not find it."""
    flights = imports(monkeypatch, publish)
    run(entry_site, ask(entry_site))
    (flight,) = flights
    requester = flight.site.requester
    assert (requester.node, requester.job_id) == ("n1", 7)
    assert requester.run_id != "0a1b2c3d"
    assert flight.producer.job == 7
    assert flight.site.charged == ("ws-alice", os.getuid(), "")


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (ImageNotFound(image=IMAGE), False),
        (RegistryUnreachable(image=IMAGE, problem="refused"), True),
        (ZeroDivisionError(), True),
    ],
)
def test_a_failure_is_told_and_tried_again_if_that_may_help(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch, error: WarmstartError, stays: bool
) -> None:
    """The hooks of this node find it here, those of other nodes in the store; the next job may try at once."""
    imports(monkeypatch, fail(error))
    request = ask(entry_site)
    assert run(entry_site, request) == 0
    (event,) = entry_site.events("image.import-failed")
    assert (event["again"], event["attempt"]) == (stays, 1)
    failure = requests.last_failure(entry_site.paths.imports, request.key)
    assert failure is not None
    assert failure.code == event["error"]["code"]
    left = requests.read(entry_site.paths.imports, request.key)
    assert (left is not None) == stays
    if left is not None:
        assert left.is_due()
    notes = list(entry_site.store.glob("images/failed/*.json"))
    assert len(notes) == (not isinstance(error, ZeroDivisionError))


def test_a_failure_is_told_to_those_who_watch(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    """Nobody waits for an import that is over."""
    imports(monkeypatch, fail(RegistryUnreachable(image=IMAGE, problem="refused")))
    run(entry_site, ask(entry_site))
    assert told == [WATCHED, "ended"]


def test_the_last_attempt_ends_the_request(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next job asks anew."""
    imports(monkeypatch, fail(RegistryUnreachable(image=IMAGE, problem="refused")))
    run(entry_site, ask(entry_site, attempts=MOST_ATTEMPTS))
    assert requests.keys(entry_site.paths.imports) == []


@pytest.mark.threat(39)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"reference": f"other.example.com/a@{DIGEST}"}, "image-refused"),
        ({"private": "team"}, "credentials-unusable"),
        ({"asked": time.time() - 8000}, "image-import-abandoned"),
        ({"reference": "UPPER"}, "image-reference-invalid"),
        ({"kind": "x86_64.other1"}, "image-import-abandoned"),
    ],
)
def test_the_policy_in_force_decides(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], code: str
) -> None:
    """It may have changed since the hook asked; a request is believed no further."""
    flights = imports(monkeypatch, publish)
    run(entry_site, ask(entry_site, **changes))
    assert flights == []
    assert [event["error"]["code"] for event in entry_site.events("image.import-failed")] == [code]


def test_a_private_image_is_imported_with_the_sites_login(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into its own store; the file with the credentials is read when the importer is made, and not before."""
    repository = PrivateRepository("team", compiled.Pattern("reg.example.com/a", ""), ())
    rules = entry_site.policy.images._replace(credentials=Credentials("/nowhere/credentials", (repository,)))
    entry_site.write(entry_site.policy._replace(images=rules))
    flights = imports(monkeypatch, publish)
    run(entry_site, ask(entry_site, private="team"))
    (flight,) = flights
    assert flight.site.store.path == str(entry_site.store / "private" / "team")
    with pytest.raises(WarmstartError, match="credentials"):
        flight.site.importer()


def test_an_image_that_another_host_imports_is_left_to_it(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The election decides; this node's hooks wait for the other."""
    monkeypatch.setattr(making, "ELECTION_S", 0.0)
    flights = imports(monkeypatch, publish)
    monkeypatch.setattr(published, "begin", lambda *_: None)
    monkeypatch.setattr(making, "begin", lambda *_: None)
    run(entry_site, ask(entry_site))
    assert flights == []
    assert requests.keys(entry_site.paths.imports) == []
    assert entry_site.events("image.import-failed") == []


def test_without_a_slot_the_request_waits(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """That attempt does not count."""
    monkeypatch.setattr(requests, "LOCK_S", 0.1)
    flights = imports(monkeypatch, publish)
    request = ask(entry_site)
    queue = Queue(entry_site.paths.imports, "/nowhere", entry_site.policy.images.parallel, 7200)
    with requests.slot(queue, request), requests.slot(queue, request):
        run(entry_site, request)
    left = requests.read(entry_site.paths.imports, request.key)
    assert left == request._replace(attempts=0, tried=0.0)
    assert flights == []


def test_one_process_works_on_a_request(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one ends at once, without a word."""
    monkeypatch.setattr(requests, "LOCK_S", 0.1)
    flights = imports(monkeypatch, publish)
    request = ask(entry_site)
    with requests.held(entry_site.paths.imports, request.key):
        assert run(entry_site, request) == 0
    assert flights == []
    assert entry_site.events("hook.started") == []


def test_a_cancelled_import_says_so(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch, handlers: list[Callable[[int, None], NoReturn]]
) -> None:
    """Whoever removes the request and sends SIGTERM ends the waiting of all hooks."""
    request = ask(entry_site)

    def cancel(_: Flight) -> NoReturn:
        requests.drop(entry_site.paths.imports, request.key)
        handlers[-1](15, None)

    imports(monkeypatch, cancel)
    assert run(entry_site, request) == 0
    assert "was cancelled" in entry_site.events("image.import-failed")[0]["error"]["reason"]
    assert len(list(entry_site.store.glob("images/failed/*.json"))) == 1  # other nodes' hooks hear it, too


def test_a_host_that_shuts_down_leaves_the_request(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch, handlers: list[Callable[[int, None], NoReturn]]
) -> None:
    """Maintenance starts it again after the boot."""
    request = ask(entry_site)
    imports(monkeypatch, lambda _: handlers[-1](15, None))
    with pytest.raises(SystemExit):
        run(entry_site, request)
    assert requests.keys(entry_site.paths.imports) == [request.key]
    assert not requests.is_live(entry_site.paths.imports, request.key)


def test_a_request_that_is_gone_or_no_request(entry_site: EntrySite, capsys: pytest.CaptureFixture[str]) -> None:
    """Its import was faster, or somebody calls the program by hand."""
    assert import_image.main(entry_site.installation.prefix, ["0" * 32]) == 0
    assert import_image.main(entry_site.installation.prefix, ["../x"]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("function", ["read_small", "opened_lock"])
def test_a_failing_disk_leaves_the_request(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], function: str
) -> None:
    """One line for systemd's journal and a status, no traceback. Maintenance starts it again."""
    request = ask(entry_site)

    def fails(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(requests, function, fails)
        assert run(entry_site, request) == 1
    assert "Input/output error" in capsys.readouterr().err
    assert requests.keys(entry_site.paths.imports) == [request.key]


def test_nothing_is_imported_while_warmstart_is_off(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request stays until its time is over."""
    flights = imports(monkeypatch, publish)
    request = ask(entry_site)
    Path(entry_site.installation.off_switch).touch()
    assert run(entry_site, request) == 0
    assert flights == []
    assert requests.keys(entry_site.paths.imports) == [request.key]

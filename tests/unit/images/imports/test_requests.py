"""Requests for background imports: one for each image and node, in a fair order, and started again a few times."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.support.vanish import WHENS, vanishes
from warmstart.host import detached
from warmstart.images.imports import requests
from warmstart.images.imports.requests import MOST_ATTEMPTS, MOST_PER_USER, ImportRequest
from warmstart.images.query import Queue
from warmstart.images.store.published import RememberedFailure

ASKED = ImportRequest(
    reference="reg.io/a:1", kind="x86_64.oci1", private="", user="alice", uid=2001, account="",
    cluster="c", node="n1", job_id=7, run_id="r1", asked=0.0,
)  # fmt: skip


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the keys of the imports that are started, instead of starting them."""
    keys: list[str] = []
    monkeypatch.setattr(requests, "_start", lambda _program, key: keys.append(key))
    return keys


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """Return the empty queue of a node that makes two imports at a time."""
    return Queue(str(tmp_path / "imports"), "/nowhere/import", 2, 7200)


def asked_for(name: str, uid: int = 2001, ago_s: float = 0.0) -> ImportRequest:
    """Return a user's request for an image."""
    return ASKED._replace(reference=f"reg.io/{name}:1", uid=uid, asked=time.time() - ago_s)


def names(queue: Queue, keys: list[str]) -> list[str]:
    """Return the images of requests."""
    found = [requests.read(queue.directory, key) for key in keys]
    return [request.reference.removeprefix("reg.io/").removesuffix(":1") for request in found if request]


def age(queue: Queue, key: str, seconds: float) -> None:
    """Move a request's last attempt into the past."""
    request = requests.read(queue.directory, key)
    assert request is not None
    requests._write(queue.directory, request._replace(tried=request.tried - seconds))


@pytest.mark.threat(39)
def test_a_request_is_roots_alone_and_written_once(queue: Queue) -> None:
    """The hooks of a node that want the same image have the same request; the first one's stays."""
    request = asked_for("a")
    assert requests.submit(queue, request) == ""
    assert requests.submit(queue, request._replace(job_id=8)) == ""
    assert requests.keys(queue.directory) == [request.key]
    assert requests.read(queue.directory, request.key) == request
    path = Path(queue.directory) / f"{request.key}.json"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_key_names_image_kind_store_and_node() -> None:
    """Each of them has imports of its own, and the key is safe in a unit's name."""
    others = [
        ASKED._replace(reference="reg.io/b:1"),
        ASKED._replace(kind="x86_64.enroot1"),
        ASKED._replace(private="team"),
        ASKED._replace(node="n2"),
    ]
    assert len({request.key for request in (ASKED, *others)}) == 5
    assert ASKED._replace(job_id=9, uid=5).key == ASKED.key
    assert requests.is_key(ASKED.key)
    assert not requests.is_key("../../etc/passwd")


@pytest.mark.threat(38)
def test_one_user_has_a_bounded_number(queue: Queue) -> None:
    """The next one is told why it waits; other users still get theirs in."""
    for number in range(MOST_PER_USER):
        assert requests.submit(queue, asked_for(f"a{number}")) == ""
    assert requests.submit(queue, asked_for("more")) == (
        f"{MOST_PER_USER} imports of user alice wait on node n1 already"
    )
    assert requests.submit(queue, asked_for("b", uid=2002)) == ""


def test_as_many_start_as_there_are_slots(queue: Queue, started: list[str]) -> None:
    """A second call starts no more: those that were just started will take the slots."""
    for name in "abc":
        requests.submit(queue, asked_for(name))
    assert len(requests.start_due(queue)) == 2
    assert requests.start_due(queue) == []
    assert len(started) == 2


@pytest.mark.threat(38)
def test_users_take_turns(queue: Queue, started: list[str]) -> None:
    """Whoever asks for many images lets those who come later go first with theirs."""
    for number, name in enumerate(("a1", "a2", "a3")):
        requests.submit(queue, asked_for(name, ago_s=100 - number))
    requests.submit(queue, asked_for("b1", uid=2002, ago_s=1))
    requests.start_due(queue)
    assert names(queue, started) == ["a1", "b1"]
    with requests.held(queue.directory, started[0]), requests.slot(queue, asked_for("a1")):
        requests.submit(queue, asked_for("c1", uid=2003))
        age(queue, started[1], 3600)
        requests.drop(queue.directory, started[1])
        requests.start_due(queue)
    assert names(queue, started[2:]) == ["c1"]  # before a2: a1 is at work


@pytest.mark.threat(38)
@pytest.mark.usefixtures("started")
def test_a_users_turn_does_not_come_again_before_the_others(queue: Queue) -> None:
    """Whoever has asked for many images first has as many turns as the others, also while nothing of it is at work."""
    alices = [asked_for(f"a{number}", ago_s=100 - number) for number in range(4)]
    bobs = [asked_for(f"b{number}", uid=2002, ago_s=50 - number) for number in range(4)]
    carols = [asked_for(f"c{number}", uid=2003, ago_s=10 - number) for number in range(2)]
    for request in (*alices, *bobs, *carols):
        requests.submit(queue, request)
    order = [name.partition(":")[0] for name in all_started(queue, *alices, *bobs, *carols)]
    assert order == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "a3", "b3"]


@pytest.mark.threat(38)
@pytest.mark.usefixtures("started")
def test_who_asks_for_one_image_after_the_other_has_no_more_turns(queue: Queue) -> None:
    """A new request comes behind those of others whose turn it is."""
    bobs = [asked_for(f"b{number}", uid=2002, ago_s=50 - number) for number in range(4)]
    for request in bobs:
        requests.submit(queue, request)
    order = []
    for number in range(3):
        one = asked_for(f"a{number}", ago_s=10 - number)
        requests.submit(queue, one)
        (first, second) = requests.start_due(queue._replace(parallel=1))  # one more, since two users wait
        for key in (first, second):
            order += names(queue, [key])
            requests.drop(queue.directory, key)
    assert order == ["b0", "a0", "b1", "a1", "b2", "a2"]


@contextmanager
def at_work(queue: Queue, request: ImportRequest) -> Iterator[None]:
    """Let a process work on a request for the duration of a `with`, in a slot, since long ago."""
    age(queue, request.key, 3600)
    with requests.held(queue.directory, request.key), requests.slot(queue, request) as has_slot:
        assert has_slot
        yield


def all_started(queue: Queue, *wanted: ImportRequest) -> list[str]:
    """Start requests until none is left; return their images, in order."""
    images = {request.key: request.reference.removeprefix("reg.io/") for request in wanted}
    order: list[str] = []
    while chosen := requests.start_due(queue):
        order += [images[key] for key in chosen]
        for key in chosen:
            requests.drop(queue.directory, key)
    return order


@pytest.mark.threat(38)
@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_no_user_holds_the_last_slot_while_another_one_waits(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, parallel: int
) -> None:
    """Who comes first may have all slots; then one more opens for the others, and for nobody else."""
    monkeypatch.setattr(requests, "LOCK_S", 0.1)
    queue = queue._replace(parallel=parallel)
    slow = [asked_for(f"m{number}", ago_s=100 - number) for number in range(parallel + 1)]
    alices, bobs = asked_for("a", uid=2002, ago_s=2), asked_for("b", uid=2003, ago_s=1)
    for request in slow:
        requests.submit(queue, request)
    with ExitStack() as stack:
        for request in slow[:parallel]:
            stack.enter_context(at_work(queue, request))
        assert requests.start_due(queue) == []  # nobody else waits
        with requests.slot(queue, slow[-1]) as has_slot:
            assert not has_slot
        for request in (alices, bobs):
            requests.submit(queue, request)
        assert requests.start_due(queue) == [alices.key]
        assert requests.start_due(queue) == []
        with at_work(queue, alices):
            assert requests.start_due(queue) == []
            with requests.slot(queue, bobs) as has_slot:
                assert not has_slot
        requests.drop(queue.directory, alices.key)
        assert requests.start_due(queue) == [bobs.key]


@pytest.mark.threat(38)
@pytest.mark.usefixtures("started")
def test_a_second_request_keeps_the_better_rank(queue: Queue) -> None:
    """An image is as near as it is for whoever of its users is nearest; who asked first is charged."""
    queue = queue._replace(parallel=64)  # all start, in their order
    alices = [asked_for(f"a{number}", ago_s=100 - number) for number in range(MOST_PER_USER)]
    for request in alices:
        requests.submit(queue, request)
    for _ in range(2):
        assert requests.submit(queue, asked_for(f"a{MOST_PER_USER - 1}", uid=2002)) == ""
    known = requests.read(queue.directory, alices[-1].key)
    assert known is not None
    assert (known.uid, known.further) == (2001, (2002,))
    assert all_started(queue, *alices)[:3] == ["a0:1", "a15:1", "a1:1"]


@pytest.mark.threat(38)
@pytest.mark.usefixtures("started")
def test_nobody_is_held_back_by_a_stranger_who_wants_the_same(queue: Queue) -> None:
    """As where a user with many requests asks for all images of another one, too."""
    queue = queue._replace(parallel=64)  # all start, in their order
    many = [asked_for(f"m{number}", ago_s=100 - number) for number in range(MOST_PER_USER - 3)]
    bobs = [asked_for(f"b{number}", uid=2002, ago_s=10 - number) for number in range(3)]
    for request in (*many, *bobs, *(request._replace(uid=2001) for request in bobs)):
        requests.submit(queue, request)
    assert all_started(queue, *many, *bobs)[:6] == ["m0:1", "b0:1", "m1:1", "b1:1", "m2:1", "b2:1"]


def test_few_of_those_who_want_an_image_are_remembered(queue: Queue) -> None:
    """A request stays small, however many ask."""
    for uid in range(2001, 2100):
        requests.submit(queue, asked_for("a", uid=uid))
    known = requests.read(queue.directory, asked_for("a").key)
    assert known is not None
    assert known.further == tuple(range(2002, 2002 + requests.MOST_FURTHER))


@pytest.mark.usefixtures("started")
def test_images_of_a_repository_come_one_after_the_other(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second would wait in a slot for the layers of the first. Not for ever, and not if none are kept."""
    queue = queue._replace(parallel=8)
    first, other = asked_for("a", ago_s=10), asked_for("b")
    second = first._replace(reference=f"reg.io/a@sha256:{'0' * 64}", asked=time.time())
    alike = [second._replace(kind="x86_64.enroot1"), second._replace(private="team")]
    requests.submit(queue, first)
    assert requests.start_due(queue) == [first.key]
    for request in (second, other, *alike):
        requests.submit(queue, request)
    assert set(requests.start_due(queue)) == {other.key, *(request.key for request in alike)}
    now = time.time()
    with requests.held(queue.directory, first.key):
        monkeypatch.setattr(time, "time", lambda: now + requests.SAME_REPOSITORY_S - 1)
        assert second.key not in requests.start_due(queue)
        monkeypatch.setattr(time, "time", lambda: now + requests.SAME_REPOSITORY_S + 1)
        assert second.key in requests.start_due(queue)


def test_a_live_request_is_not_started(queue: Queue, started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a second process let in."""
    monkeypatch.setattr(requests, "LOCK_S", 0.1)
    request = asked_for("a")
    requests.submit(queue, request)
    with requests.held(queue.directory, request.key) as is_ours:
        assert is_ours
        assert requests.is_live(queue.directory, request.key)
        assert requests.start_due(queue) == []
        with requests.held(queue.directory, request.key) as is_second:
            assert not is_second
    assert not requests.is_live(queue.directory, request.key)
    assert requests.start_due(queue) == [request.key]
    assert started == [request.key]


def test_a_lock_goes_with_its_request(queue: Queue) -> None:
    """A lock file is left only beside a request that still has to be done."""
    request = asked_for("a")
    requests.submit(queue, request)
    lock = Path(queue.directory) / f"{request.key}.lock"
    with requests.held(queue.directory, request.key):
        pass
    assert lock.exists()
    with requests.held(queue.directory, request.key):
        requests.drop(queue.directory, request.key)
    assert not lock.exists()
    assert requests.keys(queue.directory) == []


def test_an_import_that_dies_is_started_again_later_and_later(queue: Queue, started: list[str]) -> None:
    """At last it is given up, and those who wait for it hear why."""
    request = asked_for("a")
    requests.submit(queue, request)
    for attempt in range(MOST_ATTEMPTS):
        assert requests.start_due(queue) == [request.key]
        age(queue, request.key, requests.FIRST_BACKOFF_S * 2**attempt - 1)
        assert requests.start_due(queue) == []
        age(queue, request.key, 1)
    assert requests.start_due(queue) == []
    assert requests.read(queue.directory, request.key) is None
    failure = requests.last_failure(queue.directory, request.key)
    assert failure is not None
    assert failure.code == "image-import-abandoned"
    assert "has died 5 times" in failure.text
    assert len(started) == MOST_ATTEMPTS


@pytest.mark.usefixtures("started")
def test_an_import_that_failed_may_be_tried_at_once(queue: Queue) -> None:
    """By the next job that asks; the number of attempts counts on."""
    request = asked_for("a")
    requests.submit(queue, request)
    requests.start_due(queue)
    requests.put_back(queue.directory, request.key, attempts=1)
    assert requests.start_due(queue) == [request.key]
    found = requests.read(queue.directory, request.key)
    assert found is not None
    assert found.attempts == 2


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_clock_that_steps_stops_nothing(
    queue: Queue, started: list[str], monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """An attempt in the future is as good as an old one, and a request from the future is over."""
    request = asked_for("a")
    requests.submit(queue, request)
    requests.start_due(queue)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + step_s)
    assert requests.start_due(queue) == [request.key]
    assert len(started) == 2
    assert request.is_expired(7200) == (step_s < 0)


@pytest.mark.threat(38)
def test_what_is_over_is_abandoned(queue: Queue) -> None:
    """Unless somebody works on it; a damaged request goes, too."""
    old, live, new = asked_for("old", ago_s=7300), asked_for("live", ago_s=7300), asked_for("new")
    for request in (old, live, new):
        requests.submit(queue, request)
    (Path(queue.directory) / f"{'0' * 32}.json").write_text("{")
    with requests.held(queue.directory, live.key):
        assert requests.abandon_expired(queue.directory, 7200) == [old]
    assert sorted(requests.keys(queue.directory)) == sorted([live.key, new.key])
    failure = requests.last_failure(queue.directory, old.key)
    assert failure is not None
    assert "its time is over" in failure.text


def test_a_request_whose_time_is_over_is_made_anew(queue: Queue) -> None:
    """By the next job that asks, before maintenance finds it."""
    requests.submit(queue, asked_for("a", ago_s=7300)._replace(attempts=3))
    new = asked_for("a")
    assert requests.submit(queue, new) == ""
    assert requests.read(queue.directory, new.key) == new


def test_an_import_can_be_cancelled(queue: Queue) -> None:
    """Its process gets SIGTERM, and nobody starts it again. Without a process the request goes."""
    request = asked_for("a")
    assert not requests.cancel(queue.directory, request.key)
    requests.submit(queue, request)
    assert requests.cancel(queue.directory, request.key)
    requests.submit(queue, request)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            with requests.held(queue.directory, request.key):
                os.write(writer, b"x")
                signal.pause()
        finally:
            os._exit(0)
    os.read(reader, 1)
    assert requests.cancel(queue.directory, request.key)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    assert requests.keys(queue.directory) == []
    assert not requests.cancel(queue.directory, request.key)
    os.close(reader)
    os.close(writer)


def test_slots_are_bounded(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two imports hold both; the third gets none, and one when the first ends."""
    monkeypatch.setattr(requests, "LOCK_S", 0.1)
    request = asked_for("a")
    requests.submit(queue, request)
    with requests.slot(queue, request) as first:
        with requests.slot(queue, request) as second, requests.slot(queue, request) as third:
            assert (first, second, third) == (True, True, False)
        with requests.slot(queue, request) as again:
            assert again


def test_notes_of_failures_go(queue: Queue) -> None:
    """After a while, as do files that killed writers left; requests stay."""
    request = asked_for("a")
    requests.submit(queue, request)
    requests.remember_failure(queue.directory, request.key, RememberedFailure("c", {}))
    left = Path(queue.directory) / f".{request.key}.json.99.tmp"
    left.touch()
    requests.forget_failures(queue.directory, 60)
    assert requests.last_failure(queue.directory, request.key) is not None
    for path in (left, Path(queue.directory) / f"{request.key}.failed"):
        os.utime(path, (0, 0))
    requests.forget_failures(queue.directory, 60)
    assert requests.last_failure(queue.directory, request.key) is None
    assert not left.exists()
    assert requests.keys(queue.directory) == [request.key]


@WHENS
def test_a_hook_that_dies_at_any_point(tmp_path: Path, started: list[str], when: str) -> None:
    """The next one that asks has the import started, and writes no second request."""
    for turn in count(1):
        queue = Queue(str(tmp_path / str(turn)), "/nowhere/import", 2, 7200)
        request = asked_for("a")

        def ask(queue: Queue = queue, request: ImportRequest = request) -> None:
            requests.submit(queue, request)
            requests.start_due(queue)

        died = vanishes(ask, turn, when)
        requests.submit(queue, request)
        age(queue, request.key, 3600)
        requests.start_due(queue)
        assert (requests.keys(queue.directory), started) == ([request.key], [request.key]), turn
        started.clear()
        if not died:
            break
    assert turn > 10


@WHENS
def test_an_import_that_dies_at_its_end(tmp_path: Path, started: list[str], when: str) -> None:
    """Its request is done, or it is started again; it is never taken for one that somebody works on."""
    for turn in count(1):
        queue = Queue(str(tmp_path / str(turn)), "/nowhere/import", 2, 7200)
        request = asked_for("a")
        requests.submit(queue, request)

        def end(queue: Queue = queue, request: ImportRequest = request) -> None:
            with requests.held(queue.directory, request.key), requests.slot(queue, request):
                requests.drop(queue.directory, request.key)

        died = vanishes(end, turn, when)
        assert requests.start_due(queue) == requests.keys(queue.directory)
        assert not requests.is_live(queue.directory, request.key)
        if not died:
            break
    assert turn > 5
    assert started


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let systemd seem to run, with a `systemctl` that writes down its arguments and fails if `broken` exists."""
    log = tmp_path / "log"
    script = tmp_path / "systemctl"
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ ! -e {tmp_path}/broken ]\n')
    script.chmod(0o755)
    monkeypatch.setattr(requests, "SYSTEMD", str(tmp_path))
    monkeypatch.setattr(requests, "SYSTEMCTL", str(script))
    return log


def test_systemd_starts_the_import_where_it_runs(
    queue: Queue, systemd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot, as without the unit, the program is started all the same."""
    started: list[list[str]] = []
    monkeypatch.setattr(detached, "start", started.append)
    requests.submit(queue, asked_for("a"))
    (key,) = requests.start_due(queue)
    assert systemd.read_text() == f"start --no-block warmstart-import@{key}.service\n"
    assert started == []
    (tmp_path / "broken").touch()
    requests.put_back(queue.directory, key, attempts=0)
    requests.start_due(queue)
    assert started == [["/nowhere/import", key]]

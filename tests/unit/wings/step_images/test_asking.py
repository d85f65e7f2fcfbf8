"""What the importer asks root: answers of every kind, sockets that are not root's, lines that break off."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lib.policy_site import defaults
from warmstart.images.reference import parse
from warmstart.policy.keys import Images
from warmstart.wings.step_images import asking
from warmstart.wings.step_images.asking import ALONE, BROKEN, BUSY, EXPIRED, FAILED, THERE, Answer

REFERENCE = parse("reg.io/team/app:1")
RULES = defaults().images


class Root:
    """Root's end of the socket: says its lines one after the other, and remembers what it was asked.

    With a `pause` it says all on one connection, with so many seconds between two lines.
    """

    def __init__(self, path: str, lines: Sequence[bytes], pause: float = 0.0) -> None:
        self.asked: list[bytes] = []
        self._lines = lines
        self._pause = pause
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Root:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
        self._listener.close()

    def _serve(self) -> None:
        for lines in [self._lines] if self._pause else [[said] for said in self._lines]:
            line, _ = self._listener.accept()
            with line, suppress(BrokenPipeError):  # the step has gone
                self.asked.append(line.recv(1000))
                for number, said in enumerate(lines):
                    time.sleep(self._pause if number else 0.0)
                    line.sendall(said)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return a short path for a socket, whoever listens there counts as root; nobody pauses."""
    monkeypatch.setattr(asking, "peer", lambda _: (1, 0, 0))
    monkeypatch.setattr(asking, "FIRST_PAUSE_S", 0.001)
    with tempfile.TemporaryDirectory() as directory:
        yield f"{directory}/socket"


def test_an_answer_crosses(path: str) -> None:
    """The line has the canonical reference, and the step's nodes unless they are too many to tell."""
    answer = Answer(FAILED, "", "user", "image-refused", "no", "ask")
    for nodes, told in (("n[1-2]", b"n[1-2]"), ("n" * asking.LONGEST_LINE, b"")):
        with Root(path, [answer.encode()]) as root:
            assert asking.ask(path, REFERENCE, 30, nodes) == answer
        assert root.asked == [b"reg.io/team/app:1 " + told + b"\n"]
        Path(path).unlink()


@pytest.mark.real_time
def test_an_answer_may_take_its_time_once_root_has_heard(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that says so may come with the answer, or long before it."""
    answer = Answer(THERE, "/store/a.sqsh")
    with Root(path, [asking.HEARD + answer.encode()]):
        assert asking.ask(path, REFERENCE, 30) == answer
    Path(path).unlink()
    monkeypatch.setattr(asking, "HEARD_S", 3.0)
    with Root(path, [asking.HEARD, answer.encode()], pause=3.2):
        assert asking.ask(path, REFERENCE, 30) == answer


@pytest.mark.threat(49)
def test_a_stopped_server_holds_no_step(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes connections for it; nobody says a word, and the step goes on alone."""
    monkeypatch.setattr(asking, "HEARD_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stopped:
        stopped.bind(path)
        stopped.listen()
        assert asking.obtain(path, REFERENCE, RULES, lambda: "", waits_on=True) == Answer(ALONE)


def test_an_answer_is_bounded() -> None:
    line = Answer(FAILED, "", "store", "c", "\x1b" * 100_000, "y" * 100_000).encode()
    assert len(line) < 20_000
    assert line.count(b"\n") == 1
    assert json.loads(line)[5] == "y" * asking.LONGEST_TEXT + "…"


@pytest.mark.parametrize(
    "said", [b"", b"there", b"[]\n", b'["there",1]\n', b"\xff\n", b"x" * 100_000, b"[" * 9000 + b"\n"]
)
def test_what_is_no_answer_is_asked_again(path: str, said: bytes) -> None:
    with Root(path, [said]):
        assert asking.ask(path, REFERENCE, 30).said == BROKEN


@pytest.mark.threat(49)
def test_without_a_socket_the_step_is_alone(path: str) -> None:
    assert asking.ask(path, REFERENCE, 30).said == ALONE
    Path(path).touch()
    assert asking.ask(path, REFERENCE, 30).said == ALONE
    Path(path).unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(path)
    assert asking.ask(path, REFERENCE, 30).said == ALONE


@pytest.mark.threat(49)
def test_a_socket_of_somebody_else_is_not_asked(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "peer", lambda _: (1, 64201, 64201))
    with Root(path, [b""]) as root:
        assert asking.ask(path, REFERENCE, 30).said == ALONE
    assert root.asked == [b""]


def test_the_kernel_names_the_other_end() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        assert asking.peer(ours) == (os.getpid(), os.getuid(), os.getgid())


def expired() -> bytes:
    return Answer(FAILED, kind="store", code=EXPIRED, text="still missing").encode()


def test_a_step_asks_again_while_the_policy_lets_it_wait(path: str) -> None:
    """After a wait in vain, and where root has no place for it. What it finds itself meanwhile ends the wait, too."""
    there = Answer(THERE, "/store/a.sqsh")
    with Root(path, [expired(), Answer(BUSY).encode(), there.encode()]):
        assert asking.obtain(path, REFERENCE, RULES, lambda: "", waits_on=True) == there
    Path(path).unlink()
    with Root(path, [Answer(BUSY).encode()]):
        assert asking.obtain(path, REFERENCE, RULES, lambda: "/store/b.sqsh", waits_on=True).path == "/store/b.sqsh"


def test_a_program_that_is_out_of_order_is_asked_a_few_times(path: str) -> None:
    with Root(path, [b""] * asking.MOST_BROKEN):
        assert asking.obtain(path, REFERENCE, RULES, lambda: "", waits_on=True) == Answer(ALONE)


@pytest.mark.parametrize(
    ("rules", "waits_on", "said"),
    [
        (RULES, False, expired()),
        (RULES._replace(wait=0), False, Answer(BUSY).encode()),
        (RULES, True, Answer(ALONE).encode()),
        (RULES, True, Answer(FAILED, kind="user", code="image-too-large").encode()),
    ],
)
def test_what_ends_the_wait(path: str, rules: Images, waits_on: bool, said: bytes) -> None:
    with Root(path, [said]):
        assert asking.obtain(path, REFERENCE, rules, lambda: "", waits_on=waits_on).encode() == said


def test_a_step_waits_as_long_as_an_import_may_take(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "IMPORT_S", 0.0)
    with Root(path, [expired()]):
        assert asking.obtain(path, REFERENCE, RULES, lambda: "", waits_on=True).encode() == expired()

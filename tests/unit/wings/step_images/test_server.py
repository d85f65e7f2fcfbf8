"""The server of the socket: how many it answers at once, whom it turns away, and when it ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.lib.runs import a_run
from warmstart.paths import Installation
from warmstart.run import state as runs
from warmstart.run.state import Seeded, SeededBundle
from warmstart.wings.step_images import server
from warmstart.wings.step_images.asking import BUSY, HEARD
from warmstart.wings.step_images.place import program_of
from warmstart.wings.step_images.server import MOST_PER_USER, STRANGER, _Server, place_of

ANSWERS = '#!/bin/sh\nread -r line\necho "$line" >&0\n'
WAITS = "#!/bin/sh\nread -r line\nexec sleep 60\n"
WAITS_FOR_OTHERS = "#!/bin/sh\nread -r line\nprintf w\nsleep 0.2\necho waits >&0\nexec sleep 60\n"
GOES_ON = "#!/bin/sh\nread -r line\nprintf w\nprintf g\nsleep 0.2\necho goes on >&0\nexec sleep 60\n"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory with a short path, for a socket; nothing takes seconds, and who asks has a job."""
    monkeypatch.setattr(server, "TICK_S", 0.02)
    monkeypatch.setattr(server, "place_of", lambda _installation, _pid, uid: uid)
    monkeypatch.setattr(server, "LEAST_S", 0.0)
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@contextmanager
def served(place: Path, script: str, *, idle_s: float = 0.0, path: str = "") -> Iterator[int]:
    """Serve a socket in a process of its own, with a script for the program that answers; yield its pid."""
    installation = Installation(str(place))
    program = Path(program_of(installation))
    program.parent.mkdir(parents=True)
    program.write_text(script)
    program.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(place / "socket"))
    listener.listen()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            _Server(listener, installation).run(idle_s=idle_s, path=path)
            status = 0
        finally:
            os._exit(status)
    listener.close()
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def connect(place: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(30)
    line.connect(str(place / "socket"))
    return line


def ask(place: Path) -> bytes:
    """Say a line; return the answer."""
    with connect(place) as line:
        with suppress(BrokenPipeError):  # it is told to ask again before it has said anything
            line.sendall(b"hello\n")
        said = line.recv(len(HEARD))
        return line.recv(100) if said == HEARD else said + line.recv(100)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def wait_for(number: int, pid: int) -> None:
    end = time.monotonic() + 30
    while len(children(pid)) != number:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_each_connection_is_answered_by_a_process_of_its_own(place: Path) -> None:
    with served(place, ANSWERS):
        assert [ask(place) for _ in range(2 * MOST_PER_USER)] == [b"hello\n"] * 2 * MOST_PER_USER


def test_one_user_has_a_few_places(place: Path) -> None:
    """Whoever finds none is told to ask again; a step that goes away makes room, and its process ends."""
    with served(place, WAITS) as pid, ExitStack() as lines:
        for _ in range(MOST_PER_USER):
            lines.enter_context(connect(place)).sendall(b"hello\n")
        wait_for(MOST_PER_USER, pid)
        assert json.loads(ask(place))[0] == BUSY
        lines.close()
        wait_for(0, pid)
        with connect(place) as line:
            line.sendall(b"hello\n")
            wait_for(1, pid)


def test_a_place_is_taken_for_a_while_however_soon_its_answer_came(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a flood costs the node little."""
    monkeypatch.setattr(server, "LEAST_S", 600.0)
    with served(place, ANSWERS):
        said = [ask(place) for _ in range(MOST_PER_USER + 1)]
    assert said[:-1] == [b"hello\n"] * MOST_PER_USER
    assert json.loads(said[-1])[0] == BUSY


def test_all_users_together_have_a_bound(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST", 1)
    with served(place, WAITS) as pid, connect(place) as line:
        line.sendall(b"hello\n")
        wait_for(1, pid)
        assert json.loads(ask(place))[0] == BUSY


@pytest.mark.threat(49)
@pytest.mark.parametrize("most", ["MOST_WAITING", "MOST_WAITING_PER_USER"])
def test_who_waits_for_other_nodes_has_no_place(place: Path, monkeypatch: pytest.MonkeyPatch, most: str) -> None:
    """Of the user's steps others have it, which may be what is waited for. So many do, and any more keep theirs."""
    monkeypatch.setattr(server, most, 3)
    with served(place, WAITS_FOR_OTHERS) as pid, ExitStack() as lines:
        for number in range(3 + MOST_PER_USER):
            line = lines.enter_context(connect(place))
            line.sendall(b"hello\n")
            assert line.recv(len(HEARD)) == HEARD
            assert line.recv(100) == b"waits\n"
            wait_for(number + 1, pid)
        assert json.loads(ask(place))[0] == BUSY


@pytest.mark.threat(49)
def test_who_goes_on_has_a_place_again(place: Path) -> None:
    with served(place, GOES_ON) as pid, ExitStack() as lines:
        for _ in range(MOST_PER_USER):
            line = lines.enter_context(connect(place))
            line.sendall(b"hello\n")
            assert line.recv(len(HEARD)) == HEARD
            assert line.recv(100) == b"goes on\n"
        wait_for(MOST_PER_USER, pid)
        assert json.loads(ask(place))[0] == BUSY


@pytest.mark.threat(49)
def test_silence_has_no_place_and_ends(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_SILENT", MOST_PER_USER)
    monkeypatch.setattr(server, "SILENT_S", 600.0)
    with served(place, ANSWERS) as pid, ExitStack() as lines:
        silent = [lines.enter_context(connect(place)) for _ in range(2 * MOST_PER_USER)]
        assert ask(place) == b"hello\n"
        assert [line.recv(1) for line in silent[:MOST_PER_USER]] == [b""] * MOST_PER_USER
        silent[-1].sendall(b"hello\n")
        assert silent[-1].recv(1) == HEARD
        assert silent[-1].recv(100) == b"hello\n"
        wait_for(0, pid)


@pytest.mark.threat(49)
def test_a_silent_connection_ends_soon(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_S", 0.0)
    with served(place, ANSWERS), connect(place) as line:
        assert line.recv(1) == b""


def test_a_node_without_processes_ends_the_connection(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _Server.run

    def fails() -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def run(server: _Server, **options: Any) -> None:  # noqa: ANN401 - the real one's
        monkeypatch.setattr(os, "fork", fails)
        real(server, **options)

    monkeypatch.setattr(_Server, "run", run)
    monkeypatch.setattr(server, "SILENT_S", 600.0)
    with served(place, ANSWERS):
        for _ in range(2):
            with connect(place) as line:
                line.sendall(b"hello\n")
                assert line.recv(100) == HEARD
                with suppress(ConnectionResetError):  # it was not read
                    assert line.recv(100) == b""


@pytest.mark.threat(49)
def test_who_is_in_no_recorded_step_shares_few_places(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever uids they have: a user may have many. They take no place of a step that a record knows."""
    asked = iter(range(1000))
    monkeypatch.setattr(server, "peer", lambda _: (1, next(asked), 0))
    steps = {MOST_PER_USER + 1}
    monkeypatch.setattr(server, "place_of", lambda _i, _pid, uid: uid if uid in steps else server.STRANGER)
    with served(place, WAITS) as pid, ExitStack() as lines:
        for _ in range(MOST_PER_USER):
            lines.enter_context(connect(place)).sendall(b"hello\n")
        wait_for(MOST_PER_USER, pid)
        assert json.loads(ask(place))[0] == BUSY
        step = lines.enter_context(connect(place))
        step.sendall(b"hello\n")
        assert step.recv(100) == HEARD


@pytest.mark.threat(49)
def test_a_place_is_of_the_user_whom_the_jobs_record_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another uid in that user's step has none of its own, nor what is in a step without a record, or in none."""
    installation, uid = Installation(str(tmp_path)), os.getuid()
    for node in ("n1", "n2"):
        (Path(installation.node(node).state) / "7").mkdir(parents=True)
    record = a_run(node="n2", seeded={"x": Seeded("n", [SeededBundle("s", "c", ["e" * 9000])])})
    runs.save(installation.node("n2").state, record)
    jobs = {1: 7, 2: 8, 3: None}
    monkeypatch.setattr(server, "job_of", jobs.get)
    places = [place_of(installation, pid, user) for pid in jobs for user in (uid, uid + 1)]
    assert places == [uid, *[STRANGER] * 5]


@pytest.mark.parametrize("end", ["idle", "replaced", "removed"])
def test_when_it_ends(place: Path, end: str) -> None:
    """That of systemd when nobody has asked for a while; its own when the socket has another's place, or none."""
    idle_s, path = (0.1, "") if end == "idle" else (0.0, str(place / "socket"))
    with served(place, ANSWERS, idle_s=idle_s, path=path) as pid:
        assert ask(place) == b"hello\n"
        if end == "replaced":
            (place / "other").touch()
            (place / "other").rename(place / "socket")
        elif end == "removed":
            (place / "socket").unlink()
        deadline = time.monotonic() + 30
        while Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_who_calls_it_by_hand_is_told_how(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert server.main("/nonexistent", ["x"]) == server.WRONG_USAGE
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert server.main("/nonexistent", []) == server.NOT_ROOT
    assert capsys.readouterr().err == "usage: step-images\nwarmstart: step-images needs root\n"

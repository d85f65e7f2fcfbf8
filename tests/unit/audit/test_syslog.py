"""Lines reach the host's syslog in its own form, and a syslog that is away costs nothing but that."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.lib.journals import FIELDS, finished, lines
from warmstart.audit.sink import flush

from warmstart.audit import events, fallback, syslog
from warmstart.audit.log import Log
from warmstart.host import reserve


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Listen where syslog does."""
    path = str(tmp_path / "service")
    monkeypatch.setattr(syslog, "SOCKET", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        listening.settimeout(10)
        yield listening


def test_it_gets_what_syslog_3_sends(journal_dir: str, log: Path, service: socket.socket) -> None:
    finished(journal_dir)
    flush(journal_dir, str(log), syslog=True)
    found = re.fullmatch(
        r"<30>[A-Z][a-z]{2} [ 1-3]\d \d\d:\d\d:\d\d warmstart\[\d+\]: (.*)", service.recv(1 << 20).decode()
    )
    assert found
    assert json.loads(found[1]) == lines(log)[0]


def test_nobody_there(journal_dir: str, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syslog, "SOCKET", "/nowhere/log")
    finished(journal_dir)
    assert flush(journal_dir, str(log), syslog=True) == len(lines(log)) == 2


def test_a_service_that_does_not_read_delays_nothing(
    journal_dir: str, log: Path, service: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syslog, "SEND_S", 0.01)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        filler.connect(service.getsockname())
        with suppress(BlockingIOError):
            while True:
                filler.send(b"x")
    finished(journal_dir)
    assert flush(journal_dir, str(log), syslog=True) == len(lines(log)) == 2
    with syslog.Syslog() as line:
        line.send("info", "x")
        assert line._socket is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"event": "image.imported"}, "info"),
        ({"event": "hook.finished", "outcome": "failed"}, "warning"),
        ({"event": "hook.crashed"}, "warning"),
        ({"event": "job.refused", "error": {"kind": "user"}}, "warning"),
        ({"event": "step.failed", "error": {"kind": "node"}}, "error"),
        ({"event": "node.drained"}, "error"),
    ],
)
def test_the_level_says_what_an_operator_must_see(line: dict[str, object], expected: str) -> None:
    assert syslog.level(line) == expected


# Events that can be written nowhere; tests/node/host/test_reserve.py has real full disks.


def received(service: socket.socket) -> dict[str, Any]:
    """Return the next message's JSON."""
    message: dict[str, Any] = json.loads(service.recv(1 << 16).partition(b"]: ")[2])
    return message


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def no_new(path: str, flags: int, *more: Any, **named: Any) -> int:  # noqa: ANN401 - os.open's
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", no_new)


def test_without_a_reserve_events_go_to_syslog(
    journal_dir: str, full: None, service: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the log has them, and to stderr, which slurmd 22.05 logs only if the hook fails."""
    journal = Log(journal_dir, FIELDS)
    journal.emit(events.JOB_REFUSED, image="a\x1b[31m")
    journal.finish(outcome="failed")
    refused, ended = received(service), received(service)
    assert (refused["event"], refused["job_id"], refused["image"]) == ("job.refused", 7, "a\\x1b[31m")
    assert (refused["schema"], refused["ts"][-1]) == (1, "Z")
    assert ended["event"] == "hook.finished"
    assert '"event": "job.refused"' in capsys.readouterr().err
    (shown,) = journal.shown_to_job().splitlines()
    assert (json.loads(shown)["event"], json.loads(shown)["lost"]) == ("state.full", True)


def test_with_a_reserve_they_go_there(
    journal_dir: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    reserve.fill(f"{os.path.dirname(journal_dir)}/reserve")
    os.mkdir(journal_dir)
    request.getfixturevalue("full")
    journal = Log(journal_dir, FIELDS)
    journal.bind(step="image").emit(events.IMAGE_REUSED)
    journal.finish(outcome="ok")
    (path,) = Path(journal_dir).iterdir()
    written = [json.loads(line) for line in path.read_text().splitlines() if line]
    assert [line["event"] for line in written] == ["state.full", "image.reused", "hook.finished"]
    assert written[0]["lost"] is False


def test_what_is_no_event_is_said_there_too(service: socket.socket) -> None:
    fallback.say("it is so")
    assert received(service)["reason"] == "it is so"

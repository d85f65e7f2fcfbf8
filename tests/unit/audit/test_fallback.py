"""Events that can be written nowhere reach the host's syslog; tests/node/host/test_reserve.py has real full disks."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lib.journals import FIELDS
from warmstart.audit import events, fallback
from warmstart.audit.journal import Journal
from warmstart.host import reserve


@pytest.fixture
def syslog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Listen where syslog does."""
    monkeypatch.setattr("warmstart.audit.syslog.SOCKET", str(tmp_path / "log"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "log"))
        listening.settimeout(10)
        yield listening


def received(service: socket.socket) -> dict[str, Any]:
    """Return the next message's JSON."""
    message: dict[str, Any] = json.loads(service.recv(1 << 16).partition(b"]: ")[2])
    return message


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a disk that takes no new file."""
    real = os.open

    def no_new(path: str, flags: int, *more: Any, **named: Any) -> int:  # noqa: ANN401 - os.open's
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", no_new)


def test_without_a_reserve_events_go_to_syslog(
    journal_dir: str, full: None, syslog: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the log has them, and to stderr, which slurmd 22.05 logs only if the hook fails."""
    journal = Journal(journal_dir, FIELDS)
    journal.emit(events.JOB_REFUSED, image="a\x1b[31m")
    journal.finish(outcome="failed")
    refused, finished = received(syslog), received(syslog)
    assert (refused["event"], refused["job_id"], refused["image"]) == ("job.refused", 7, "a\\x1b[31m")
    assert (refused["schema"], refused["ts"][-1]) == (1, "Z")
    assert finished["event"] == "hook.finished"
    assert '"event": "job.refused"' in capsys.readouterr().err
    (shown,) = journal.shown_to_job().splitlines()
    assert (json.loads(shown)["event"], json.loads(shown)["lost"]) == ("state.full", True)


def test_with_a_reserve_they_go_there(
    journal_dir: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    reserve.fill(f"{os.path.dirname(journal_dir)}/reserve")
    os.mkdir(journal_dir)
    request.getfixturevalue("full")
    journal = Journal(journal_dir, FIELDS)
    journal.bind(step="image").emit(events.IMAGE_REUSED)
    journal.finish(outcome="ok")
    (path,) = Path(journal_dir).iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    assert [line["event"] for line in lines] == ["state.full", "image.reused", "hook.finished"]
    assert lines[0]["lost"] is False


def test_what_is_no_event_is_said_there_too(syslog: socket.socket) -> None:
    fallback.say("it is so")
    assert received(syslog)["reason"] == "it is so"

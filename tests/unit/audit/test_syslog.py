"""Lines reach the host's syslog in its own form, and a syslog that is away costs nothing but that."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lib.journals import finished, lines
from warmstart.audit import syslog
from warmstart.audit.sink import flush


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

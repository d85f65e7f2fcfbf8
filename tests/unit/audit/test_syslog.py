"""The host's syslog: what an operator must see, and a service that is away or deaf costs nothing but its lines."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lib.audit_lines import finished, lines
from warmstart.audit import syslog


def test_a_service_that_does_not_read_delays_nothing(
    log: Path, service: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syslog, "SEND_S", 0.01)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        filler.connect(service.getsockname())
        with suppress(BlockingIOError):
            while True:
                filler.send(b"x")
    finished(log, syslog=True)
    assert len(lines(log)) == 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"event": "image.imported"}, "info"),
        ({"event": "hook.finished", "outcome": "ok"}, "info"),
        ({"event": "hook.finished", "outcome": "failed"}, "warning"),
        ({"event": "hook.finished", "outcome": "crashed"}, "warning"),
        ({"event": "hook.finished", "outcome": "ok", "failures": [{"kind": "store"}]}, "warning"),
        ({"event": "hook.finished", "outcome": "drained", "failures": [{"kind": "node"}]}, "error"),
        ({"event": "image.import-failed", "error": {"kind": "user"}}, "warning"),
        ({"event": "image.damaged"}, "warning"),
        ({"event": "hook.finished", "outcome": "ended"}, "info"),
        ({"event": "node.drained", "error": {"kind": "node"}}, "error"),
    ],
)
def test_the_level_says_what_an_operator_must_see(line: dict[str, object], expected: str) -> None:
    assert syslog.level(line) == expected


def test_what_is_no_event_is_said_there_too(service: socket.socket) -> None:
    syslog.say("it is so")
    assert json.loads(service.recv(1 << 16).partition(b"]: ")[2])["reason"] == "it is so"

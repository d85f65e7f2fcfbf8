"""The audit log on a real disk that is full: what does not fit goes to syslog, and the next line begins anew."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lib import mounts
from tests.lib.audit_lines import FIELDS
from warmstart.audit import events, syslog
from warmstart.audit.log import Log

pytestmark = pytest.mark.threat(12)


def test_a_full_disk_of_logs(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tmpfs of some pages: the line that fills it is cut short, there and in no reader's mind."""
    monkeypatch.setattr(syslog, "SOCKET", str(base / "service"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service, mounts.tmpfs(base / "log", size="12k") as disk:
        service.bind(syslog.SOCKET)
        service.setblocking(False)
        log = disk / "audit.jsonl"
        for number in range(8):
            Log(str(log), FIELDS).emit(events.ENTRY_PROMOTED, number=number, text="x" * 3000)
        sent = []
        with suppress(BlockingIOError):
            while True:
                sent.append(json.loads(service.recv(1 << 16).partition(b"]: ")[2])["number"])
        *whole, torn = log.read_bytes().split(b"\n")
        assert torn
        assert [json.loads(line)["number"] for line in whole] + sent == [*range(8)]
        Path(log).write_bytes(b"\n".join([whole[0], torn[:100]]))
        Log(str(log), FIELDS).finish(outcome="ok")
        assert [line.endswith(b"}") for line in log.read_bytes().splitlines()] == [True, False, True]

"""Lines reach the host's log service in its own form, and a service that is away costs nothing but that."""

from __future__ import annotations

import array
import fcntl
import json
import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.journals import finished, lines
from warmstart.audit import shipping
from warmstart.audit.sink import flush


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Listen where journald and syslog do."""
    path = str(tmp_path / "service")
    monkeypatch.setattr(shipping, "JOURNALD_SOCKET", path)
    monkeypatch.setattr(shipping, "SYSLOG_SOCKET", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        listening.settimeout(10)
        yield listening


def received(service: socket.socket) -> bytes:
    """Return the next datagram or, as journald does, the content of the sealed file that came instead."""
    data, ancillary, _, _ = service.recvmsg(1 << 20, socket.CMSG_SPACE(4))
    if not ancillary:
        return data
    assert data == b""
    (fd,) = array.array("i", ancillary[0][2][:4])
    try:
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == shipping.SEALS
        return os.pread(fd, 1 << 24, 0)
    finally:
        os.close(fd)


def fields(data: bytes) -> dict[str, str]:
    """Parse journald's native protocol: `KEY=value`, or KEY, a length of 64 bits and the value."""
    found = {}
    while data:
        head, _, data = data.partition(b"\n")
        key, is_plain, value = head.partition(b"=")
        if not is_plain:
            (size,) = struct.unpack("<Q", data[:8])
            value, data = data[8 : 8 + size], data[9 + size :]
        found[key.decode()] = value.decode()
    return found


def test_journald_gets_the_line_and_fields_to_search_by(journal_dir: str, log: Path, service: socket.socket) -> None:
    """`journalctl WARMSTART_JOB_ID=7`; the message is the line of the file."""
    finished(journal_dir)
    assert flush(journal_dir, str(log), ["journald"]) == 2
    found = fields(received(service))
    assert json.loads(found["MESSAGE"]) == lines(log)[0]
    assert (found["SYSLOG_IDENTIFIER"], found["PRIORITY"]) == ("warmstart", "6")
    assert (found["WARMSTART_JOB_ID"], found["WARMSTART_NODE"], found["WARMSTART_EVENT"]) == (
        "7",
        "n1",
        "image.imported",
    )
    assert fields(received(service))["WARMSTART_EVENT"] == "hook.finished"


def test_a_value_with_newlines_is_sent_with_its_length(service: socket.socket) -> None:
    """Nothing in a line can begin a field of its own."""
    with shipping.shippers(["journald"]) as (shipper,):
        shipper.send({"event": "a\nPRIORITY=0", "user": "b"}, "{}")
    found = fields(received(service))
    assert (found["WARMSTART_EVENT"], found["WARMSTART_USER"], found["PRIORITY"]) == ("a\nPRIORITY=0", "b", "6")


def test_a_line_that_no_datagram_holds_goes_as_a_file(service: socket.socket) -> None:
    """The journal reads a sealed memory file; it holds the whole line."""
    with shipping.shippers(["journald"]) as (shipper,):
        shipper.send({"event": "x"}, "y" * (2 << 20))
        assert shipper.unsent == 0
    assert len(fields(received(service))["MESSAGE"]) > 1 << 20


def test_syslog_gets_what_syslog_3_sends(journal_dir: str, log: Path, service: socket.socket) -> None:
    """Priority, time, name and pid, then the line."""
    finished(journal_dir)
    flush(journal_dir, str(log), ["syslog"])
    found = re.fullmatch(
        r"<30>[A-Z][a-z]{2} [ 1-3]\d \d\d:\d\d:\d\d warmstart\[\d+\]: (.*)", received(service).decode()
    )
    assert found
    assert json.loads(found[1]) == lines(log)[0]


def test_a_service_that_is_away_is_told_in_the_log(journal_dir: str, log: Path, tmp_path: Path) -> None:
    """The file has all lines, and one more that says what the service lacks."""
    shipping_to = str(tmp_path / "nobody")
    finished(journal_dir)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipping, "JOURNALD_SOCKET", shipping_to)
        assert flush(journal_dir, str(log), ["journald"]) == 3
    *_, last = lines(log)
    assert (last["event"], last["service"], last["lines"]) == ("audit.unshipped", "journald", 2)
    assert shipping_to in last["reason"]


def test_a_service_that_does_not_read_delays_nothing(
    journal_dir: str, log: Path, service: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is full: one short wait, then its lines are counted only."""
    monkeypatch.setattr(shipping, "SEND_S", 0.01)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        filler.connect(service.getsockname())
        with suppress(BlockingIOError):
            while True:
                filler.send(b"x")
    for _ in range(3):
        finished(journal_dir)
        flush(journal_dir, str(log), ["syslog"])
    assert [line["lines"] for line in lines(log) if line["event"] == "audit.unshipped"] == [2, 2, 2]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"event": "image.imported"}, 6),
        ({"event": "hook.finished", "outcome": "failed"}, 4),
        ({"event": "hook.crashed"}, 4),
        ({"event": "job.refused", "error": {"kind": "user"}}, 4),
        ({"event": "step.failed", "error": {"kind": "node"}}, 3),
        ({"event": "node.braked"}, 3),
    ],
)
def test_the_severity_says_what_an_operator_must_see(line: dict[str, object], expected: int) -> None:
    """Error where a node is lost, warning where something failed."""
    assert shipping.severity(line) == expected

"""Send audit lines to the host's log service, besides the file: journald's native protocol, or syslog.

Off the hot path: `audit.sink` ships the lines that it moves into the file. The file stays the complete log; what a
service does not take is not sent again. Sending never blocks for longer than `SEND_S`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from warmstart.audit.line import ORDER, Line

SEND_S = 1.0
JOURNALD, SYSLOG = "journald", "syslog"
# The journal's native protocol: systemd.io/JOURNAL_NATIVE_PROTOCOL.
JOURNALD_SOCKET = "/run/systemd/journal/socket"
SYSLOG_SOCKET = "/dev/log"
IDENTIFIER = "warmstart"
DAEMON = 3 << 3  # facility, syslog(3)
ERROR, WARNING, INFO = 3, 4, 6  # severities, syslog(3)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Shipper:
    """Sends lines to one service. After the first failure it only counts the lines that it does not send."""

    def __init__(self, name: str, path: str, send: Callable[[socket.socket, Line, str], None]) -> None:
        """`send` writes one line, given as fields and as JSON, to a socket that is connected to `path`."""
        self.name = name
        self.problem = ""
        self.unsent = 0
        self._send = send
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(SEND_S)
        try:
            self._socket.connect(path)
        except OSError as error:
            self.problem = f"{path}: {error.strerror}"

    def send(self, line: Line, text: str) -> None:
        """Send one line, given as fields and as JSON, or count it."""
        if not self.problem:
            try:
                self._send(self._socket, line, text)
            except OSError as error:
                self.problem = error.strerror or str(error)
        self.unsent += bool(self.problem)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@contextmanager
def shippers(names: Iterable[str]) -> Iterator[list[Shipper]]:
    """Open the services with these names for a `with` block."""
    made = {
        JOURNALD: lambda: Shipper(JOURNALD, JOURNALD_SOCKET, _send_to_journald),
        SYSLOG: lambda: Shipper(SYSLOG, SYSLOG_SOCKET, _send_to_syslog),
    }
    with ExitStack() as stack:
        opened = [made[name]() for name in names]
        for shipper in opened:
            stack.callback(shipper.close)
        yield opened


def severity(fields: Line) -> int:
    """Return an event's severity: error for faults of the node, warning for other failures, else info."""
    error = fields.get("error")
    if fields.get("event") in ("node.drained", "node.braked"):
        return ERROR
    if isinstance(error, dict):
        return ERROR if error.get("kind") == "node" else WARNING
    failed = fields.get("outcome") == "failed" or str(fields.get("event")).endswith((".failed", ".crashed", ".damaged"))
    return WARNING if failed else INFO


def _send_to_journald(connected: socket.socket, fields: Line, text: str) -> None:
    """Send MESSAGE and a field WARMSTART_* for each key of `ORDER`, so that `journalctl WARMSTART_JOB_ID=7` works."""
    values = {
        "MESSAGE": text,
        "PRIORITY": str(severity(fields)),
        "SYSLOG_FACILITY": str(DAEMON >> 3),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        **{f"WARMSTART_{key.upper()}": _text(fields[key]) for key in ORDER if key in fields},
    }
    data = b"".join(_field(key, value.encode()) for key, value in values.items())
    try:
        connected.send(data)
    except OSError as error:
        if error.errno != errno.EMSGSIZE:
            raise
        _send_as_file(connected, data)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _field(key: str, value: bytes) -> bytes:
    if b"\n" in value:
        return key.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return key.encode() + b"=" + value + b"\n"


def _send_as_file(connected: socket.socket, data: bytes) -> None:
    """Send what no datagram holds as a sealed memory file, which journald reads."""
    fd = os.memfd_create(IDENTIFIER, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        socket.send_fds(connected, [b""], [fd])
    finally:
        os.close(fd)


def _send_to_syslog(connected: socket.socket, fields: Line, text: str) -> None:
    """Send what syslog(3) sends. RFC 5424's header is for the network: rsyslog does not parse it on /dev/log."""
    stamp = time.strftime("%b %e %H:%M:%S")
    connected.send(f"<{DAEMON | severity(fields)}>{stamp} {IDENTIFIER}[{os.getpid()}]: {text}".encode())

"""The host's syslog, at `/dev/log`: audit lines, besides the file, and what a hook can write down nowhere else.

Off the hot path. The file stays the complete log: what syslog does not take is not sent again. Sending never blocks for
longer than `SEND_S`.
"""

from __future__ import annotations

import os
import socket
import time

from warmstart.audit.line import Line
from warmstart.lean import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Literal

    Level = Literal["error", "warning", "info"]

SEND_S = 1.0
SOCKET = "/dev/log"
DAEMON = 3 << 3  # facility, syslog(3)
SEVERITIES: dict[Level, int] = {"error": 3, "warning": 4, "info": 6}  # syslog(3)


class Syslog:
    """A connection for a `with` block. After its first failure it takes nothing more."""

    def __enter__(self) -> Syslog:
        """Connect, if anybody listens."""
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(SEND_S)
        try:
            self._socket.connect(SOCKET)
        except OSError:
            self.__exit__()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def send(self, level: Level, text: str) -> None:
        """Send what syslog(3) sends. RFC 5424's header is for the network: rsyslog does not parse it on /dev/log."""
        stamp = time.strftime("%b %e %H:%M:%S")
        message = f"<{DAEMON | SEVERITIES[level]}>{stamp} warmstart[{os.getpid()}]: {text}"
        try:
            if self._socket is not None:
                self._socket.send(message.encode())
        except OSError:
            self.__exit__()


def level(fields: Line) -> Level:
    """Return an event's level: error for faults of the node, warning for other failures, else info."""
    error = fields.get("error")
    if fields.get("event") == "node.drained":
        return "error"
    if isinstance(error, dict):
        return "error" if error.get("kind") == "node" else "warning"
    failed = fields.get("outcome") == "failed" or str(fields.get("event")).endswith((".failed", ".crashed", ".damaged"))
    return "warning" if failed else "info"

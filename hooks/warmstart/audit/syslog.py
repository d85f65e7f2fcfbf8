"""The host's syslog, at `/dev/log`: audit lines that cannot be written to the log, or go to both. Off the hot path.

What syslog does not take is not sent again. Sending never blocks for longer than `SEND_S`.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from warmstart.audit.line import Line, encoded, shaped, timestamp
from warmstart.lean import TYPE_CHECKING, suppress

if TYPE_CHECKING:
    from typing import Literal

    Level = Literal["error", "warning", "info"]

SEND_S = 0.5
SOCKET = "/dev/log"
DAEMON = 3 << 3  # facility, syslog(3)
SEVERITIES: dict[Level, int] = {"error": 3, "warning": 4, "info": 6}  # syslog(3)


def send(level: Level, text: str) -> None:
    """Send what syslog(3) sends. RFC 5424's header is for the network: rsyslog does not parse it on /dev/log."""
    stamp = time.strftime("%b %e %H:%M:%S")
    message = f"<{DAEMON | SEVERITIES[level]}>{stamp} warmstart[{os.getpid()}]: {text}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as service:
        service.settimeout(SEND_S)
        service.connect(SOCKET)
        service.send(message.encode())


def say(text: str) -> None:
    """Send what is no event to syslog, and print it to stderr."""
    complain(text)
    line = shaped({"ts": timestamp(time.time()), "outcome": "failed", "reason": text})
    send(level(line), encoded(line))


def complain(text: str) -> None:
    """Print to stderr, if anybody reads it."""
    with suppress(OSError, ValueError):
        print(f"warmstart: {text}", file=sys.stderr)  # noqa: T201 - the last resort of a hook


def level(fields: Line) -> Level:
    """Return an event's level: error for faults of the node, warning for other failures, else info."""
    failures = fields.get("failures")
    problems = [one for one in (fields.get("error"), *(failures if isinstance(failures, list) else ())) if one]
    if any(isinstance(one, dict) and one.get("kind") == "node" for one in problems):
        return "error"
    is_good = fields.get("outcome", "ok") in ("ok", "ended") and not str(fields.get("event")).endswith("damaged")
    return "info" if is_good and not problems else "warning"

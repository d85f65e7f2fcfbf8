"""What a journal does when its file cannot be written: a file of the reserve, a note there, the host's syslog.

Not imported by a hook that can write. A hook's stderr is the last place and not the first: slurmd 22.05 logs it only if
the hook fails.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from warmstart.audit.events import STATE_FULL
from warmstart.audit.line import Line, decoded, shaped, timestamp
from warmstart.audit.syslog import Syslog, level
from warmstart.host import reserve
from warmstart.host.files import FULL, opened_dir, read_small, unlink_if_there, write_all
from warmstart.lean import dumps
from warmstart.paths import reserve_beside


def go_on(path: str, fd: int, fields: Mapping[str, object], error: OSError) -> int:
    """Continue the journal at `path` where a write to it, or its creation, failed. Return its descriptor.

    On a full disk a file of the reserve takes its place; `fd` then is that file, so that copies of the journal write
    to it, too. `fd` is -1 for a journal without a file; the result, if that stays so.
    """
    if error.errno not in FULL:
        if fd < 0 and not os.path.lexists(path):
            complain(f"audit journal {path}: {error.strerror}")
        return fd
    try:
        file = _moved(path)
    except OSError:
        line = state_full(fields, lost=True)
        with suppress(OSError):
            reserve.note(reserve_beside(os.path.dirname(path)), str(fields["run_id"]).encode(), line)
        return fd
    with suppress(OSError):
        write_all(file, state_full(fields, lost=False))
    if fd < 0:
        return file
    os.dup2(file, fd, inheritable=False)
    os.close(file)
    return fd


def ship(line: bytes) -> None:
    """Send an event that is written nowhere to the host's syslog, and print it to stderr."""
    complain(line.decode().rstrip())
    if event := decoded(line):
        _to_syslog({**event, "ts": timestamp(time.time())})


def say(text: str) -> None:
    """Send what is no event to the host's syslog, and print it to stderr."""
    complain(text)
    _to_syslog({"ts": timestamp(time.time()), "outcome": "failed", "reason": text})


def complain(text: str) -> None:
    """Print to stderr."""
    print(f"warmstart: {text}", file=sys.stderr)  # noqa: T201 - the last resort of a hook


def _to_syslog(fields: Line) -> None:
    line = shaped(fields)
    with Syslog() as syslog:
        syslog.send(level(line), dumps(line))


def state_full(fields: Mapping[str, object], *, lost: bool) -> bytes:
    """Return the line of the event `state.full`; `lost` if nothing else of the hook is written down."""
    return dumps({"ts": time.time(), "event": STATE_FULL, **fields, "lost": lost}, default=str).encode() + b"\n"


def _moved(path: str) -> int:
    """Put a file of the reserve in the journal's place, with the events so far; return its descriptor."""
    directory, name = os.path.split(path)
    temp = f".{name}.tmp"
    with opened_dir(directory) as parent:
        events = b""
        with suppress(FileNotFoundError):
            whole = read_small(name, reserve.SIZE, parent).rpartition(b"\n")[0]  # the last line may be cut short
            events = whole.rstrip(b"\n") + b"\n" if whole else b""
        if len(events) > reserve.SIZE // 2:
            raise OSError(errno.ENOSPC, "the reserve has no file for so long a journal", path)
        file = reserve.open_file(reserve_beside(directory), parent, temp, 0o600)
        try:
            write_all(file, events)
            os.rename(temp, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            os.close(file)
            unlink_if_there(temp, parent)
            raise
    return file

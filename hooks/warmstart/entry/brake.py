"""The brake: a node that fails again and again switches itself off, so that a misread fault does not drain a fleet.

Loaded only by a hook that has failed with a node's error or a bug. It appends a line to a file of root's; with `MOST`
of them within an hour it writes the file that hooks look for as they look for `off` (`Installation.brake`). Of crashes
only those of different causes and users count: one damaged file, one store that answers nonsense, one place in the code
and one user who finds bugs stop nobody else's service (docs/threats.md, row 37).
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from warmstart.audit import events
from warmstart.errors import NodeError
from warmstart.host import files
from warmstart.paths import Installation

MOST = 3  # faults within an hour
WINDOW_S = 3600.0
AHEAD_S = 60.0  # other hooks append while this one does
LARGEST = 1 << 16  # bytes of the file of faults
CRASHED = str(events.HOOK_CRASHED)


class _Fault(NamedTuple):
    """A failure of a hook: when (epoch seconds), of whose job, an error's code or `CRASHED`, and where that was."""

    at: float
    uid: str
    code: str
    cause: str = ""  # an earlier release wrote none

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.code} in {self.cause}" if self.cause else self.code


def pull(installation: Installation, error: BaseException, uid: str) -> list[str]:
    """Count a failure of a hook; return the faults if that switches the node off, else [].

    `uid` is the job's. Where nothing can be written, nothing is counted.
    """
    what = (error.code, "") if isinstance(error, NodeError) else (CRASHED, _cause(error))
    try:
        faults = _counted(_recent(installation.faults, _Fault(time.time(), uid, *what)))
        if len(faults) < MOST:
            return []
        directory, name = os.path.split(installation.brake)
        with files.opened_dir(directory) as fd:
            files.replace_file(fd, name, _text(installation.brake, faults).encode(), 0o644)
        os.unlink(installation.faults)  # whoever switches it on again begins at zero
    except OSError:
        return []
    return [*map(str, faults)]


def _recent(path: str, fault: _Fault) -> list[_Fault]:
    """Append a fault and return those of the last hour. Concurrent hooks need no lock: a short append is atomic."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        if os.fstat(fd).st_size > LARGEST:
            os.ftruncate(fd, 0)
        os.write(fd, f"{fault.at:.3f} {fault.uid} {fault.code} {fault.cause}\n".encode())
        os.lseek(fd, 0, os.SEEK_SET)
        text = files.read_up_to(fd, 2 * LARGEST).decode("ascii", "replace")
    finally:
        os.close(fd)
    faults = [_parsed(line) for line in text.splitlines()]
    return [known for known in faults if known is not None and -AHEAD_S < fault.at - known.at < WINDOW_S]


def _parsed(line: str) -> _Fault | None:
    words = line.split(" ")
    try:
        return _Fault(float(words[0]), *words[1:])
    except (TypeError, ValueError):
        return None


def _counted(faults: list[_Fault]) -> list[_Fault]:
    """Return every node fault, and crashes of which no two have a cause or a user in common."""
    counted: list[_Fault] = []
    for crash in (fault for fault in faults if fault.code == CRASHED):
        if not any(crash.uid == one.uid or crash.cause == one.cause for one in counted):
            counted.append(crash)
    return [fault for fault in faults if fault.code != CRASHED] + counted


def _cause(error: BaseException) -> str:
    """Return the module and function that crashed, or used what did of `lean` and `host`; of a client the module alone.

    Whatever a process with another identity is asked, it is one cause.
    """
    cause, trace = "", error.__traceback__
    while trace is not None:
        code, module = trace.tb_frame.f_code, trace.tb_frame.f_globals.get("__name__", "")
        if module.startswith("warmstart.") and not module.startswith(("warmstart.host.", "warmstart.lean")):
            name = module.removeprefix("warmstart.")
            cause = name if name.endswith(".client") else f"{name}:{code.co_name}"
        trace = trace.tb_next
    return cause


def _text(path: str, faults: list[_Fault]) -> str:
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return (
        f"{now}: warmstart has switched itself off on this host after {len(faults)} node faults or crashes within an "
        f"hour: {', '.join(map(str, faults))}.\n"
        "Find the cause: warmstart audit --event node.drained, or hook.crashed; warmstart doctor.\n"
        f"Then switch it on again: rm {path}\n"
    )

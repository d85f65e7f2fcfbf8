"""Pending journals: those not yet in the audit log, and their events.

The name of a finished hook's journal ends in `.done`. An `.open` journal belongs to a running or killed hook, whose
pid is in the name. Pids are reused, so the hook counts as running only while that process has the journal's path open.
This is read from the links in /proc/PID/fd, which cannot block on a hanging file system. A live hook has no descriptor
just before its open returns and just after its close, so an `.open` journal of an existing process is left alone for
`GRACE` seconds after its last write.

Journals belong to root, but their content is parsed defensively: the disk may be full or broken, and values come from
users.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from warmstart.audit.events import HOOK_CRASHED, HOOK_FINISHED, JOURNAL_DAMAGED, SHOWN_TO_JOB
from warmstart.audit.journal import DONE, OPEN
from warmstart.audit.line import Line, decoded, timestamp
from warmstart.host.files import open_regular, read_up_to

GRACE = 60.0
LONGEST_JOURNAL = 64 << 20
IDENTITY = ("hook", "run_id", "cluster", "node", "job_id", "uid", "user")
_NAME = re.compile(rf"(?P<hook>.+)-(?P<run_id>[^-]+)-(?P<pid>[0-9]{{1,10}})(?P<state>\{OPEN}|\{DONE})\Z")
_DEBT = re.compile(r"\.(.+-([^-]+)-[0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,10})\.([01])\Z")


class PendingJournal(NamedTuple):
    """One journal file in its directory."""

    name: str
    hook: str
    run_id: str
    state: str  # "done", "killed" (the hook is dead) or "running"
    modified: float  # epoch seconds


class Debt(NamedTuple):
    """A file by which a journal owes a job's user a report (`Journal.debt`)."""

    name: str
    run_id: str  # the hook's
    uid: int
    job_id: int
    is_head: bool
    journal: PendingJournal | None  # None: somebody removed it


def journals(directory: int) -> list[PendingJournal]:
    """Return the journals in an open directory, oldest write first. Raises `OSError` if it is unreadable."""
    pending = []
    path = os.readlink(f"/proc/self/fd/{directory}")
    for name in os.listdir(directory):
        if match := _NAME.match(name):
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue  # another flush has moved it
            state = "done" if match["state"] == DONE else _state(f"{path}/{name}", match["pid"], status.st_mtime)
            pending.append(PendingJournal(name, match["hook"], match["run_id"], state, status.st_mtime))
    return sorted(pending, key=lambda journal: (journal.modified, journal.name))


def debts(directory: int) -> list[Debt]:
    """Return the debts in an open directory of journals. Raises `OSError`."""
    found = [(name, match) for name in os.listdir(directory) if (match := _DEBT.match(name))]
    there = {journal.name.rpartition(".")[0]: journal for journal in journals(directory)} if found else {}
    return [
        Debt(name, match[2], int(match[3]), int(match[4]), match[5] == "1", there.get(match[1]))
        for name, match in found
    ]


def shown(directory: int, journal: PendingJournal, uid: int, job_id: int) -> bytes:
    """Return the lines of a journal that a job's user may read. Raises `OSError` if it cannot be read.

    They are about this job. What another job's hook did for it names that job, and is left out.
    """

    def is_shown(line: Line | None) -> bool:
        if line is None or line["event"] not in SHOWN_TO_JOB or (line.get("uid"), line.get("job_id")) != (uid, job_id):
            return False
        doer = line.get("done_by", {})
        return isinstance(doer, dict) and "job_id" not in doer

    lines = _content(directory, journal.name)[0].splitlines(keepends=True)
    return b"".join(raw for raw in lines if is_shown(event_of(raw)))


def _state(path: str, pid: str, modified: float) -> str:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        return "killed"
    except OSError:
        return "running"  # not root: cannot be known
    if any(_target(f"/proc/{pid}/fd/{descriptor}") == path for descriptor in descriptors):
        return "running"
    return "running" if time.time() - modified < GRACE else "killed"


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""  # closed meanwhile


def events(directory: int, journal: PendingJournal) -> list[Line]:
    """Return the journal's events, with `ts` as text. Raises `OSError` if the journal cannot be read.

    A line that is not an event becomes `journal.damaged` with its text. If the hook was killed before it wrote
    `hook.finished`, a `hook.crashed` with the reason "killed" is added.
    """
    data, rest = _content(directory, journal.name)
    lines = list(_events(journal, data))
    if rest:
        lines.append(_added(journal, lines, JOURNAL_DAMAGED, bytes=rest, text="", reason="too long"))
    if journal.state == "killed" and all(line["event"] != HOOK_FINISHED for line in lines):
        lines.append(_added(journal, lines, HOOK_CRASHED, reason="killed"))
    return lines


def _content(directory: int, name: str) -> tuple[bytes, int]:
    fd = open_regular(name, directory)
    try:
        data = read_up_to(fd, LONGEST_JOURNAL)
        return data, os.fstat(fd).st_size - len(data)
    finally:
        os.close(fd)


def _events(journal: PendingJournal, data: bytes) -> Iterator[Line]:
    before: list[Line] = []
    for raw in data.split(b"\n"):
        if not raw.strip():
            continue
        line = event_of(raw)
        if line is None:
            text = raw.decode(errors="backslashreplace")
            line = _added(journal, before, JOURNAL_DAMAGED, bytes=len(raw), text=text, reason="not an event")
        before = before or [line]
        yield line


def event_of(raw: bytes) -> Line | None:
    """Parse a journal's line as an event with `ts` as text. Return None if it is none."""
    line = decoded(raw)
    if line is None or not isinstance(line.get("event"), str):
        return None
    seconds = line.get("ts")
    if not isinstance(seconds, (int, float)):
        return None
    try:
        return {**line, "ts": timestamp(seconds)}
    except ValueError:
        return None


def _added(journal: PendingJournal, before: list[Line], event: str, **fields: object) -> Line:
    known: Line = {"hook": journal.hook, "run_id": journal.run_id}
    for line in before[:1]:
        known.update({key: line[key] for key in IDENTITY if key in line})
    return {"ts": timestamp(journal.modified), "event": event, **known, **fields}

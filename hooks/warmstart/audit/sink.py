"""Flush journals into the audit log, one JSON line per event.

Delivery is at least once. A journal is unlinked only after the log has been synced, so if a flush dies, the next one
moves the same journals again. A repeated line has the same `run_id`, `hook`, `ts` and `event`; `audit.query` shows it
once. A lock on the journals' directory (0700; readers of the log could hold one on the log) keeps two flushes off the
same journals. A flush that does not get the lock in time continues without it and may repeat lines.

The log is opened at every flush, so logrotate may move it at any time (docs/reference/audit.md).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from warmstart.audit.pending import PendingJournal, debts, events, journals
from warmstart.audit.rendering import write
from warmstart.audit.syslog import Syslog
from warmstart.errors import ResourceError
from warmstart.host import files
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import DIRECTORY, ensure_path, opened_dir, unlink_if_there

if TYPE_CHECKING:
    from warmstart.audit.syslog import Level

BUDGET = 5.0  # seconds; the rest waits for the next hook
LOCK_WAIT = 2.0  # seconds to wait for another flush's lock
LOG = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class AuditUnwritable(ResourceError):
    """The audit log cannot be written, usually because the disk is full. The journals stay; no event is lost."""

    code = "audit-unwritable"
    template = "audit log {path}: {problem}"
    hint = "free space or repair the path; the next hook moves the waiting events"


def flush(journal_dir: str, audit_path: str, *, syslog: bool = False) -> int:
    """Move the journals of all hooks that are not running into the log. Return the number of lines written.

    Those that owe a report stay until it is left (`warmstart.journals`).

    With `syslog` the host's syslog gets the lines, too; what it does not take is in the log only.

    Raises `AuditUnwritable` if the log cannot be written; no content of a journal raises. Takes at most `BUDGET`
    seconds.
    """
    try:
        with opened_dir(journal_dir) as directory:
            if not _movable(directory):
                return 0
            deadline = after(BUDGET)
            with _opened_log(audit_path) as log:
                with suppress(OSError):  # a file system without locks
                    files.wait_flock(directory, deadline.within(LOCK_WAIT))
                with Syslog() if syslog else nullcontext() as service:
                    return _move_all(directory, _Appender(log, service), deadline)
    except FileNotFoundError as error:
        if error.filename == journal_dir:
            return 0
        raise AuditUnwritable(path=audit_path, problem=error.strerror) from error
    except OSError as error:
        raise AuditUnwritable(path=audit_path, problem=error.strerror) from error


class _Appender:
    """Appends whole lines to a descriptor, then sends them to syslog."""

    def __init__(self, fd: int, syslog: Syslog | None) -> None:
        self.fd = fd
        self.lines = 0
        self._syslog = syslog
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, b"\n")  # a full disk cut the last line short

    def info(self, text: str) -> None:
        self._append("info", text)

    def warning(self, text: str) -> None:
        self._append("warning", text)

    def error(self, text: str) -> None:
        self._append("error", text)

    def _append(self, level: Level, text: str) -> None:
        """Write one line with one write(2), so lines of several processes do not mix (O_APPEND, local file system)."""
        data = text.encode() + b"\n"
        if os.write(self.fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.lines += 1
        if self._syslog is not None:
            self._syslog.send(level, text)


def _move_all(directory: int, appender: _Appender, deadline: Deadline) -> int:
    moved: list[str] = []
    try:
        for journal in _movable(directory):
            if deadline.expired():
                break
            try:
                lines = events(directory, journal)
            except OSError:
                continue  # unreadable, or moved by another flush; none of it has been written
            for line in lines:
                write(line, appender)
            moved.append(journal.name)
    finally:
        os.fsync(appender.fd)
        for name in moved:
            unlink_if_there(name, directory)
    return appender.lines


def _movable(directory: int) -> list[PendingJournal]:
    over = [journal for journal in journals(directory) if journal.state != "running"]
    owing = {debt.journal for debt in debts(directory)}  # a hook makes its debt before it is over
    return [journal for journal in over if journal not in owing]


@contextmanager
def _opened_log(path: str) -> Iterator[int]:
    parent = os.path.dirname(path)
    if not os.path.lexists(parent):
        ensure_path(parent, 0o750)
    # The parent may be reached through a link (/var/log often is); the log itself may not be a link.
    parent_fd = os.open(parent, DIRECTORY & ~os.O_NOFOLLOW)
    try:
        fd = _open_or_create(os.path.basename(path), parent_fd)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
                raise OSError(errno.EPERM, "must be a regular file with one link, owned by this user")
            yield fd
        finally:
            os.close(fd)
    finally:
        os.close(parent_fd)


def _open_or_create(name: str, parent_fd: int) -> int:
    try:
        return os.open(name, LOG, dir_fd=parent_fd)
    except FileNotFoundError:
        pass
    fd = os.open(name, LOG | os.O_CREAT, 0o640, dir_fd=parent_fd)
    os.fchmod(fd, 0o640)
    os.fsync(parent_fd)
    return fd

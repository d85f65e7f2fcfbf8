"""Read the audit log: rotated files first, then the log, then pending journals.

Pending journals are read before the log and yielded after it, so a line that moves meanwhile is neither lost nor
repeated. A line that was flushed twice because of a crash is yielded once. Broken lines are counted and skipped.
Control characters are escaped.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import IO, NamedTuple

from warmstart.audit.line import Line, decoded, escaped, ordered, shaped
from warmstart.audit.pending import PendingJournal, events, journals
from warmstart.host.files import opened_dir

LONGEST_LINE = 4 << 20


class LineFilter(NamedTuple):
    """Filter for audit lines. None matches any value."""

    job: int | None = None
    node: str | None = None
    event: str | None = None  # `image.imported`, `image` (all events of that noun), or a glob
    user: str | None = None  # name or uid
    since: str | None = None  # in the format of `ts`: ISO 8601, UTC, milliseconds, Z

    def matches(self, line: Line) -> bool:
        """Return whether the line passes the filter."""
        return (
            (self.job is None or line.get("job_id") == self.job)
            and (self.node is None or line.get("node") == self.node)
            and (self.user is None or self.user in (line.get("user"), str(line.get("uid"))))
            and (self.since is None or str(line.get("ts")) >= self.since)
            and (self.event is None or _is_kind(str(line.get("event")), self.event))
        )


class AuditLog:
    """The log at `path`, its rotated files (`.1`, `.2.gz`, `-20260131`, …) and pending journals."""

    def __init__(self, path: str, journal_dirs: Iterable[str] = ()) -> None:
        """Unreadable `journal_dirs` are skipped: only root sees pending journals."""
        self._path = path
        self._journal_dirs = list(journal_dirs)
        self.broken = 0  # lines skipped so far

    def lines(self, only: LineFilter) -> Iterator[Line]:
        """Yield the lines that match. Raises `OSError` if the log cannot be read and no journal is pending."""
        seen: set[int] = set()
        pending = [line for directory in self._journal_dirs for line in _pending(directory)]
        with ExitStack() as stack:
            for file in self._files(stack, missing_is_fine=bool(pending)):
                for line in self._parsed(file):
                    if only.matches(line) and _is_new(line, seen):
                        yield line
        for line in pending:
            if only.matches(line) and _is_new(line, seen):
                yield line

    def _files(self, stack: ExitStack, *, missing_is_fine: bool) -> list[IO[bytes]]:
        """Return the open files, oldest first. Opens the log before listing, so a rotation meanwhile loses nothing."""
        files: list[tuple[float, IO[bytes]]] = []
        inodes = set()
        try:
            log = stack.enter_context(_opened(self._path))
        except FileNotFoundError:
            if not missing_is_fine:
                raise
        else:
            inodes.add(os.fstat(log.fileno()).st_ino)
            files.append((float("inf"), log))
        for path in _rotated(self._path):
            try:
                file = stack.enter_context(_opened(path))
            except FileNotFoundError:
                continue  # logrotate has just packed or removed it
            status = os.fstat(file.fileno())
            if status.st_ino not in inodes:
                inodes.add(status.st_ino)
                unpacked = gzip.GzipFile(fileobj=file) if path.endswith(".gz") else file
                files.append((status.st_mtime, unpacked))  # type: ignore[arg-type]
        return [file for _, file in sorted(files, key=lambda pair: pair[0])]

    def _parsed(self, file: IO[bytes]) -> Iterator[Line]:
        try:
            while raw := file.readline(LONGEST_LINE):
                line = _parsed(raw)
                if line is None:
                    self.broken += 1
                else:
                    yield line
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.broken += 1


def _parsed(raw: bytes) -> Line | None:
    line = decoded(raw)
    if line is None or "event" not in line:
        return None
    try:
        return escaped(ordered(line))
    except RecursionError:
        return None


def _pending(directory: str) -> list[Line]:
    try:
        with opened_dir(directory) as fd:
            return [shaped(line) for journal in journals(fd) for line in _events(fd, journal)]
    except OSError:
        return []  # not root


def _events(directory: int, journal: PendingJournal) -> list[Line]:
    try:
        return events(directory, journal)
    except OSError:
        return []  # flushed meanwhile: its lines are in the log


def _is_new(line: Line, seen: set[int]) -> bool:
    key = hash(json.dumps(line))
    if key in seen:
        return False
    seen.add(key)
    return True


def _is_kind(event: str, pattern: str) -> bool:
    return event.startswith(f"{pattern}.") or fnmatchcase(event, pattern)


def _rotated(path: str) -> list[str]:
    name = re.compile(re.escape(os.path.basename(path)) + r"[.-][0-9][0-9-]*(\.gz)?")
    parent = os.path.dirname(path) or "."
    try:
        return [os.path.join(parent, entry) for entry in sorted(os.listdir(parent)) if name.fullmatch(entry)]
    except OSError:
        return []


def _opened(path: str) -> IO[bytes]:
    # Follows links: the reader has only their own rights. O_NONBLOCK: opening a FIFO must not block.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return os.fdopen(fd, "rb")

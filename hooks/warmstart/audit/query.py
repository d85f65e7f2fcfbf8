"""Read audit logs: one file or many, rotated files before the log.

Bounded memory: lines are yielded as they are read. Broken lines are counted and skipped. Control characters are
escaped.
"""

from __future__ import annotations

import errno
import glob
import gzip
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from fnmatch import fnmatchcase
from typing import IO, NamedTuple

from warmstart.audit.line import Line, decoded, escaped

LONGEST_LINE = 4 << 20
CLOCKS = 3600.0  # seconds by which a host's clock may differ from the one that stamped its log file
POLL = 1.0  # seconds between two looks at a log that is followed
_LOG = re.compile(r"(?P<log>.+\.jsonl)([.-][0-9][0-9-]*(\.gz)?)?")


def epoch(ts: str) -> float:
    """Return a line's `ts` in seconds since the epoch."""
    return datetime.fromisoformat(ts.replace("Z", "+00:00")).timestamp()


class LineFilter(NamedTuple):
    """Filter for audit lines. None matches any value."""

    job: int | None = None
    node: str | None = None
    event: str | None = None  # `image.imported`, or a glob
    outcome: str | None = None  # of a last line
    user: str | None = None  # name or uid
    since: str | None = None  # in the format of `ts`: RFC 3339, UTC, milliseconds, Z; included
    until: str | None = None  # the same

    def matches(self, line: Line) -> bool:
        """Return whether the line passes the filter."""
        return (
            (self.job is None or line.get("job_id") == self.job)
            and (self.node is None or line.get("node") == self.node)
            and (self.outcome is None or line.get("outcome") == self.outcome)
            and (self.user is None or self.user in (line.get("user"), str(line.get("uid"))))
            and (self.since is None or str(line.get("ts")) >= self.since)
            and (self.until is None or str(line.get("ts")) <= self.until)
            and (self.event is None or fnmatchcase(str(line.get("event")), self.event))
        )


class Position(NamedTuple):
    """How far a log has been read. Found again after a rotation, unless the file was compressed or removed since."""

    inode: int
    offset: int  # bytes


class AuditLog:
    """Logs with their rotated files (`.1`, `.2.gz`, `-20260131`, …).

    `positions` tells, per log, how far it has been read; keep it to read on later.
    """

    def __init__(self, sources: Iterable[str], positions: Mapping[str, Position] | None = None) -> None:
        """Each source is a log, or a directory with logs in it (`*.jsonl`, at any depth)."""
        self._sources = list(sources)
        self.positions = dict(positions or {})
        self.broken = 0  # lines skipped so far

    def lines(self, only: LineFilter) -> Iterator[Line]:
        """Yield the lines that match, from `positions` on. Logs come one after the other, each oldest file first.

        Raises `OSError` if a source cannot be read.
        """
        job = None if only.job is None else str(only.job).encode()
        for raw in self._raw(only):
            if job is not None and job not in raw and raw.endswith(b"}"):
                continue  # another job's: most lines are, and parsing takes the time
            line = decoded(raw)
            if line is None or "event" not in line:
                self.broken += 1
            elif only.matches(line):
                yield line if _is_harmless(raw) else escaped(line)

    def follow(self, only: LineFilter, wait: Callable[[float], None] = time.sleep) -> Iterator[Line]:
        """Yield the lines that match as they are written. Does not end. Raises as `lines` does, at first only."""
        yield from self.lines(only)
        while True:
            wait(POLL)
            with suppress(FileNotFoundError):  # between the two steps of a rotation
                yield from self.lines(only)

    def _raw(self, only: LineFilter) -> Iterator[bytes]:
        for path in (log for source in self._sources for log in _logs(source)):
            with ExitStack() as stack:
                files = _files(path, stack)
                position = self.positions.get(path, Position(files[0].inode, 0))
                inodes = [file.inode for file in files]
                start = inodes.index(position.inode) if position.inode in inodes else len(files) - 1
                for file in files[start:]:
                    offset = position.offset if file.inode == position.inode else 0
                    self.positions[path] = Position(file.inode, offset)
                    if only.since is None or file.newest >= epoch(only.since):
                        yield from self._rest(path, file, offset)

    def _rest(self, path: str, file: _File, offset: int) -> Iterator[bytes]:
        """Yield the lines of a file from `offset` on."""
        try:
            if file.is_live and offset > file.content.seek(0, os.SEEK_END):
                offset = 0  # another file with the inode of one that was removed, or one that was cut short
            file.content.seek(offset)
            while raw := file.content.readline(LONGEST_LINE):
                if file.is_live and not raw.endswith(b"\n") and decoded(raw) is None:
                    return  # being written
                offset += len(raw)
                if raw := raw.strip():
                    yield raw
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.broken += 1
        finally:
            self.positions[path] = Position(file.inode, offset)


class _File(NamedTuple):
    content: IO[bytes]
    inode: int
    newest: float  # no line in it has a later `ts`
    is_live: bool


def _logs(source: str) -> list[str]:
    """Return the logs of a source, each without its rotated files."""
    if not os.path.isdir(source):
        return [source]
    names = (os.path.join(parent, name) for parent, _, names in os.walk(source) for name in names)
    logs = {match["log"] for name in names if (match := _LOG.fullmatch(name))}
    if not logs:
        raise FileNotFoundError(errno.ENOENT, "no *.jsonl in this directory", source)
    return sorted(logs)


def _files(path: str, stack: ExitStack) -> list[_File]:
    """Open a log's files, oldest first. Opens the log before listing, so a rotation meanwhile loses nothing.

    Raises `FileNotFoundError` if there is neither a log nor a rotated one.
    """
    files: dict[int, _File] = {}
    for name in (path, *_rotated(path)):
        try:
            content = stack.enter_context(_opened(name))
        except FileNotFoundError:
            continue  # not made yet, or logrotate has just packed or removed it
        status = os.fstat(content.fileno())
        if name.endswith(".gz"):
            content = gzip.GzipFile(fileobj=content)  # type: ignore[assignment]
        files.setdefault(status.st_ino, _File(content, status.st_ino, status.st_mtime + CLOCKS, name == path))
    if not files:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return sorted(files.values(), key=lambda file: (file.is_live, file.newest))


def _rotated(path: str) -> list[str]:
    names = sorted(glob.glob(f"{glob.escape(path)}[.-]*"))
    return [name for name in names if (match := _LOG.fullmatch(name)) and match["log"] == path]


def _is_harmless(raw: bytes) -> bool:
    """Return whether a line of JSON certainly has no control or other invisible character in its values."""
    return raw.isascii() and b"\\" not in raw and b"\x7f" not in raw


def _opened(path: str) -> IO[bytes]:
    # Follows links: the reader has only their own rights. O_NONBLOCK: opening a FIFO must not block.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return os.fdopen(fd, "rb")

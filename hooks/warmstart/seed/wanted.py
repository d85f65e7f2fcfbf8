"""Bundles that did not come in a prolog's time, and that this node fetches off the clock of jobs (docs/adr/0034).

    <node>/bundles/<sha256>.wanted.json     root, 0600: where the bundle is in the store, who asked, what was tried

Prologs write it; `entry.background` fetches the bundle and removes it. While it is there, no prolog spends time on the
bundle, and what has come of it stays. Whoever finds that an attempt is due starts the program, so a prolog may die at
any point. Scopes take turns. A scope has at most `MOST_PER_SCOPE`.
"""

from __future__ import annotations

import os
import time

from warmstart.host import wire
from warmstart.host.files import opened_dir, read_small, replace_file, unlink_if_there
from warmstart.lean import TYPE_CHECKING, NamedTuple, dumps, suppress

if TYPE_CHECKING:
    from typing import TypeVar

    from warmstart.paths import NodePaths
    from warmstart.record import Record

    T = TypeVar("T")

MOST_PER_SCOPE = 16
FIRST_BACKOFF_S = 60.0  # after an attempt that did not bring it; doubled after each further one
KEPT_S = 86_400.0  # after the last attempt
SUFFIX = ".wanted.json"
FETCHES = "fetches"  # what `entry.background` is told to do
_LONGEST = 64 << 10


class Asker(NamedTuple):
    """The job that asked first. Events about the fetch bear its labels."""

    job_id: int
    uid: int
    user: str
    cluster: str

    @classmethod
    def of(cls, record: Record) -> Asker:
        """Return the job of a record."""
        return cls(record.job_id, record.uid, record.user, record.cluster)


class Wanted(NamedTuple):
    """A bundle that this node is to fetch. Times are in seconds since the epoch."""

    sha256: str
    size: int  # bytes
    scope: str
    profile: str
    namespace: str
    bundle: str
    job: Asker
    asked: float
    attempts: int = 0  # that were begun
    tried: float = 0.0  # when the last one was begun

    def is_due(self) -> bool:
        """Return whether the next attempt may begin."""
        return not 0 <= time.time() - self.tried < FIRST_BACKOFF_S * 2 ** (self.attempts - 1)


def is_wanted(sha256: str, dir_fd: int) -> bool:
    """Return whether a bundle's fetch goes on off the clock; `dir_fd` is the directory of the copies."""
    try:
        os.stat(sha256 + SUFFIX, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def add(dir_fd: int, wanted: Wanted) -> bool:
    """Have a bundle fetched off the clock; return False if its scope has too many. Raises `OSError`."""
    if sum(other.scope == wanted.scope for other in _all(dir_fd)) >= MOST_PER_SCOPE:
        return False
    write(dir_fd, wanted)
    return True


def write(dir_fd: int, wanted: Wanted) -> None:
    """Write what is known of a bundle that is wanted. Raises `OSError`."""
    replace_file(dir_fd, wanted.sha256 + SUFFIX, dumps(wanted._asdict()).encode(), 0o600)


def forget(dir_fd: int, sha256: str) -> None:
    """Have a bundle fetched no longer. Raises `OSError`."""
    unlink_if_there(sha256 + SUFFIX, dir_fd)


def forget_old(dir_fd: int, now: float) -> None:
    """Have bundles fetched no longer that were not tried for long."""
    for name in os.listdir(dir_fd):
        if name.endswith(SUFFIX):
            with suppress(FileNotFoundError):
                if os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mtime <= now - KEPT_S:
                    unlink_if_there(name, dir_fd)


def due(directory: str) -> list[Wanted]:
    """Return the bundles of which an attempt is due, oldest first."""
    try:
        with opened_dir(directory) as fd:
            return sorted(filter(Wanted.is_due, _all(fd)), key=lambda wanted: (wanted.asked, wanted.sha256))
    except FileNotFoundError:
        return []


def start_due(paths: NodePaths) -> None:
    """Start the program that fetches, if an attempt is due; another process of it that is at work goes on alone."""
    from warmstart.host import detached

    if due(paths.bundles):
        detached.start([paths.background_program, FETCHES, os.path.basename(paths.root)])


def _all(dir_fd: int) -> list[Wanted]:
    found = []
    for name in os.listdir(dir_fd):
        if name.endswith(SUFFIX) and not name.startswith("."):
            with suppress(OSError, ValueError):  # gone, or damaged: then it expires
                found.append(wire.from_object(Wanted, wire.parse(read_small(name, _LONGEST, dir_fd))))
    return found

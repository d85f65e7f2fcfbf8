"""Locks of the store: they save work and are never needed for correctness (docs/architecture.md, rule 1).

Runs as the store's owner. The only module that imports filelock. With `fallback_to_soft=False`, filelock 4.0 and later
neither unlinks the lock file nor falls back to an existence lock (verified): it is a flock(2). An epilog takes that
itself, because importing filelock would be a fifth of its work. A lock file that anyone can open can be locked for ever
by anyone, so lock files are in a directory that only the store's owner can enter (0700).
"""

from __future__ import annotations

import errno
import os

from warmstart.host import files
from warmstart.host.deadline import after, jittered
from warmstart.host.files import ensure_dir
from warmstart.lean import TYPE_CHECKING, Iterator, contextmanager, suppress

if TYPE_CHECKING:
    from filelock import BaseFileLock

_PAUSE_S = 0.2  # a thousand may wait
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESTALE})


class HeldLock:
    """A lock that is held until `release` or until this process ends."""

    def __init__(self, lock: BaseFileLock | None, lockless: str = "") -> None:
        """`lockless` is why the file system gave no lock, or ""."""
        self._lock = lock
        self.lockless = lockless

    def release(self) -> None:
        """Release the lock; its file stays."""
        if self._lock:
            self._lock.release()


def try_lock(directory: str, name: str) -> HeldLock | None:
    """Take the lock `directory/name`; return None if it is held.

    If the file system has no locks (ENOLCK, ENOSYS, EOPNOTSUPP, ESTALE), returns a `HeldLock` with `lockless` set: two
    processes may then do the same work, which is safe. Raises other `OSError`s.
    """
    import filelock

    ensure_dir(directory, 0o700)
    lock = filelock.FileLock(os.path.join(directory, name), timeout=0, mode=0o600, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        return None
    except NotImplementedError:
        return HeldLock(None, os.strerror(errno.ENOSYS))
    except OSError as error:
        if error.errno not in _NO_LOCKS:  # a full, read-only or dead file system
            raise
        return HeldLock(None, os.strerror(error.errno))
    return HeldLock(lock)


def is_locked(directory: str, name: str) -> bool:
    """Return what `files.is_locked` does of the lock `directory/name`; False if the file system has no locks."""
    try:
        return files.is_locked(os.path.join(directory, name))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False


@contextmanager
def lock_or_proceed(directory: str, name: str, seconds: float = 10.0) -> Iterator[None]:
    """Hold the lock for a `with`; proceed without it after `seconds`, or on an error. In an epilog with new entries."""
    fd = -1
    try:
        with suppress(OSError):
            fd = files.open_lock(directory, name)
            files.wait_flock(fd, after(seconds), jittered(_PAUSE_S))
        yield
    finally:
        if fd >= 0:
            os.close(fd)

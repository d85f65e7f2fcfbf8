"""Private locks of the store: for efficiency, never for correctness (docs/architecture.md, rule 1).

The only module that imports filelock. Facts about it (run): from 4.0 on with
`fallback_to_soft=False` it neither unlinks the lock file nor turns into an existence lock; a lock that
anyone can open can be held for ever by anyone, so these lie in a directory that is the store owner's, 0700.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from warmstart.host.files import ensure_dir
from warmstart.store.layout import LOCKS

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESTALE})


class Held:
    """A lock that this process holds until `release`, or until it dies."""

    def __init__(self, lock: object, lockless: str = "") -> None:
        """`lockless`: why there is no real lock, or ""."""
        self._lock = lock
        self.lockless = lockless

    def release(self) -> None:
        """Let the next one have it; the file stays."""
        self._lock.release()  # type: ignore[attr-defined]


def try_lock(directory: str, name: str) -> Held | None:
    """Take the lock `directory/name` if nobody has it; None when somebody does.

    Where the file system has no locks (ENOLCK, ENOSYS, EOPNOTSUPP, ESTALE), there is nobody to wait for: the caller
    goes on, and two of them may do the same work, which publishing bears.
    """
    import filelock

    ensure_dir(directory, 0o700)
    lock = filelock.FileLock(os.path.join(directory, name), timeout=0, mode=0o600, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        return None
    except NotImplementedError:
        return Held(_Nothing(), os.strerror(errno.ENOSYS))
    except OSError as error:
        if error.errno not in _NO_LOCKS:  # a full, read-only or dead file system is no reason to go on
            raise
        return Held(_Nothing(), os.strerror(error.errno))
    return Held(lock)


@contextmanager
def lock_or_proceed(directory: str, name: str, attempts: int = 200, pause: float = 0.05) -> Iterator[None]:
    """Hold the lock for a `with`; after `attempts` go on without it, since it only saves work."""
    import time

    held = None
    with suppress(OSError):
        for _ in range(attempts):
            held = try_lock(directory, name)
            if held is not None:
                break
            time.sleep(pause)
    try:
        yield
    finally:
        if held is not None:
            held.release()


def publish_lock(namespace: str) -> AbstractContextManager[None]:
    """Keep other publishers and maintenance out of a namespace for a `with`; go on where the lock can't be had."""
    return lock_or_proceed(os.path.join(namespace, LOCKS), "publish")


class _Nothing:
    def release(self) -> None:
        """Release nothing: the file system has no locks."""

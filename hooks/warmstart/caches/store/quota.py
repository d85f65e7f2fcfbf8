"""The quota of a scope: its bytes are counted in a file, so that a publisher need not walk the scope.

Publishers add what they put, maintenance counts anew; in between the count is too high or too low by what went wrong.
Runs as the store's owner.
"""

from __future__ import annotations

import os

from warmstart.caches.store.layout import CACHES, is_bundle, namespaces
from warmstart.errors import UserError
from warmstart.host.deadline import after
from warmstart.host.files import closing, opened_dir, read_up_to, unlink_if_there, wait_flock, write_all
from warmstart.lean import Iterator, contextmanager, suppress
from warmstart.policy.keys import Maintenance
from warmstart.store.layout import store_errors

_COUNT = "used"
_LONGEST = 20  # digits
_LOCK_S = 2.0


class QuotaExceeded(UserError):
    """The scope's quota is used up; maintenance makes room by evicting its least recently used bundles."""

    code = "cache-quota-exceeded"
    template = "scope {scope} uses {used} of its {quota} bytes; {more} more do not fit"
    hint = "run `warmstart maintain --store`; raise maintenance.per_user if this happens often"


def quota(scope: str, rules: Maintenance) -> int:
    """Return the quota of a scope in bytes; `scope` is the name of its directory."""
    kind = scope.partition("-")[0]
    return rules.per_user * {"user": 1, "account": 10}.get(kind, 40)


def add(store: str, scope: str, more: int, most: int) -> None:
    """Count bytes that a publisher puts, or look (0) whether any may come; `most` is the quota, 0 for none.

    Raises `QuotaExceeded`, and `OSError`.
    """
    with _locked(store, scope) as fd:
        text = read_up_to(fd, _LONGEST)
        used = int(text) if text.isdigit() else 0
        if most and used + max(more, 1) > most:
            raise QuotaExceeded(scope=scope, used=used, quota=most, more=more)
        if more:
            _write(fd, used + more)


def correct(store: str, scope: str) -> int:
    """Count the bytes of a scope's bundles anew, and return them; remove a scope that has no namespace any more."""
    with store_errors("count a scope"):
        if not (there := namespaces(store, scope)):
            with suppress(OSError), opened_dir(f"{store}/{CACHES}/{scope}") as fd:
                unlink_if_there(_COUNT, fd)
                os.rmdir(f"{store}/{CACHES}/{scope}")
            return 0
        used = sum(size for where in there for size in _sizes(where.path))
        with suppress(FileNotFoundError), _locked(store, scope) as fd:
            _write(fd, used)
    return used


@contextmanager
def _locked(store: str, scope: str) -> Iterator[int]:
    """Open the count of a scope, under its lock if the file system has locks."""
    path, flags = f"{store}/{CACHES}/{scope}/{_COUNT}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing(os.open(path, flags, 0o600)) as fd:
        with suppress(OSError):
            wait_flock(fd, after(_LOCK_S))
        yield fd


def _write(fd: int, used: int) -> None:
    os.lseek(fd, 0, os.SEEK_SET)
    write_all(fd, b"%0*d" % (_LONGEST, used))  # always as long, so that nothing of a longer one is left


def _sizes(path: str) -> Iterator[int]:
    """Yield the bytes of a namespace's bundles; what vanishes, or cannot be looked at, does not stop the others."""
    with suppress(OSError), os.scandir(path) as items:
        for item in items:
            with suppress(OSError):
                if is_bundle(item.name):
                    yield item.stat(follow_symlinks=False).st_size

"""Names in the store that caches and images share, their rules, and the errors of a store that fails.

Only the store's owner makes and reads its files (docs/architecture.md, rule 6). Hot path.
"""

from __future__ import annotations

import errno
import os

from warmstart.errors import StoreError
from warmstart.host.files import file_of
from warmstart.lean import Iterator, contextmanager

# Sets instead of patterns, which would load `re` on the hot path.
_ALNUM = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_IN_COMPONENT = _ALNUM | frozenset("._@+=%-")
_LONGEST_COMPONENT = 200
# C0, DEL and C1: terminals obey them, and some end a line in a list of names.
_CONTROL = frozenset(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
_LONGEST_PATH = 1024  # bytes
_LONGEST_NAME = 255  # bytes: NAME_MAX of Linux' file systems, squashfs among them


class StoreFull(StoreError):
    """The store has no space, inodes or quota left."""

    code = "store-full"
    template = "{what}: {problem}"
    hint = "free space in the store, or raise the quota of its owner"


class StoreFailed(StoreError):
    """A file operation on the store failed."""

    code = "store-failed"
    template = "{what}: {problem}"
    hint = "check that the store is mounted, belongs to its owner (ls -ln) and responds on this node"


@contextmanager
def store_errors(what: str, directory: str = "") -> Iterator[None]:
    """Raise `StoreFull` or `StoreFailed` in place of an `OSError`; `what` names the operation ("read a listing").

    Names of files are relative to `directory`.
    """
    try:
        yield
    except OSError as error:
        path = os.path.join(directory, file_of(error))
        problem = f"{error.strerror}: {path}" if path else str(error.strerror)
        kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreFailed
        raise kind(what=what, problem=problem) from error


def is_plain_path(path: str) -> bool:
    """Return whether a relative path is valid in a list of files: no `..`, no control characters, not too long.

    A path is bytes. As text they are decoded as UTF-8, with a surrogate for each other byte (PEP 383). Text that no
    path decodes to, such as other surrogates, is refused.
    """
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return (
        len(raw) <= _LONGEST_PATH
        and _CONTROL.isdisjoint(path)
        and not any(part in (b"", b".", b"..") or len(part) > _LONGEST_NAME for part in raw.split(b"/"))
        and (path.isascii() or raw.decode("utf-8", "surrogateescape") == path)
    )


def is_component(name: str) -> bool:
    """Return whether a name is valid for a scope, a profile or a namespace."""
    return 0 < len(name) <= _LONGEST_COMPONENT and name[0] in _ALNUM and _IN_COMPONENT.issuperset(name)


def is_user_scope(scope: str) -> bool:
    """Return whether a scope is one user's own."""
    return scope.startswith("user-")

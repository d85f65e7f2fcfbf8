"""The layout of `<store>/artifacts`: names, their rules, and the errors of a failing store.

    artifacts/                                    0700: bundles of scope `user` are private
        <scope>/<profile>/<namespace>/            0755
            <bundle>.sqsh  <bundle>.json          0444, immutable; visible once the .json exists
            index.json                            replaced on update; only saves time
            locks/                                0700

Every identity uses these names; only the store's owner creates and reads the files (docs/architecture.md, rule 6).
Hot path.
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.errors import StoreError
from warmstart.host.files import DIRECTORY, ensure_dir, file_of
from warmstart.lean import Iterator, NamedTuple, contextmanager

ARTIFACTS = "artifacts"
LOCKS = "locks"
BUNDLE = ".sqsh"
MANIFEST = ".json"

# Sets instead of patterns, which would load `re` on the hot path.
_ALNUM = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_IN_COMPONENT = _ALNUM | frozenset("._@+=%-")
_LONGEST_COMPONENT = 200
_DIGITS, _HEX = frozenset("0123456789"), frozenset("0123456789abcdef")
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
    """Raise `StoreFull` or `StoreFailed` in place of an `OSError`; `what` names the operation ("read the index").

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
    """Return whether a relative path is valid in a manifest: no `..`, no control characters, not too long.

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


_EPOCH = 719_468  # the day on which 1970 began


def is_bundle_id(name: str) -> bool:
    """Return whether a name has the form of a bundle id: `20260131T093000.250000Z-0123456789abcdef`."""
    return (
        len(name) == 40
        and (name[8], name[15], name[22:24]) == ("T", ".", "Z-")
        and _DIGITS.issuperset(name[:8] + name[9:15] + name[16:22])
        and _HEX.issuperset(name[24:])
    )


def bundle_id(microseconds: int, sha256: str) -> str:
    """Return the id of a bundle published at a time in microseconds since the epoch; ids sort by age."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{rest:06d}Z-{sha256[:16]}"


def microseconds_of(bundle: str) -> int:
    """Return the time in a bundle's id, in microseconds since the epoch."""
    # `time.strptime` loads five modules. These are the days from the first of March of the year 0 (Gregorian).
    year, month, day = int(bundle[:4]), int(bundle[4:6]), int(bundle[6:8])
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 1
    minutes = ((days - _EPOCH) * 24 + int(bundle[9:11])) * 60 + int(bundle[11:13])
    return (minutes * 60 + int(bundle[13:15])) * 1_000_000 + int(bundle[16:22])


class Namespace(NamedTuple):
    """The location of a namespace: one scope's bundles of a profile for one set of facts."""

    store: str
    scope: str
    profile: str
    name: str  # a hash of the facts

    @property
    def path(self) -> str:
        """Path of its directory; raises `ValueError` if a part is not a valid name."""
        for part in self[1:]:
            if not is_component(part):
                raise ValueError(f"not a valid name in the store: {part!r}")
        return os.path.join(self.store, ARTIFACTS, *self[1:])


def make_namespace(where: Namespace) -> int:
    """Return a descriptor of a namespace's directory, which is created if it is missing.

    Never creates the store itself: if its path is missing, it is usually not mounted. Raises `OSError`.
    """
    parts = os.path.relpath(where.path, where.store).split("/")
    fd = os.open(where.store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            ensure_dir(part, 0o700 if part is parts[0] else 0o755, fd)
            below = os.open(part, DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd

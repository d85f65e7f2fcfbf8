"""The layout of the caches in the store, and what a bundle consists of.

    <store>/caches/                               0700: bundles of scope `user` are private
        <scope>/<profile>/<namespace>/            0755
            <sha256>.sqsh  <sha256>.json          0444, immutable: a bundle, and the files of its entries
            facts                                 0444, written once: what the namespace is a hash of
            listing/                              0700
                <number>                          0444, immutable: generations of the listing (generations.py)
        <scope>/used                              bytes of the scope: its quota (quota.py)
    <store>/ending/<run>/                         0700: what nodes of a run publish together (ending.py)

A sealed file begins with the SHA-256 of all that follows its first line, so that damage is seen. Every identity uses
these names; only the store's owner creates and reads the files (docs/architecture.md, rule 6). Hot path.
"""

from __future__ import annotations

import errno
import os

from warmstart.host.files import DIRECTORY, REGULAR, closing, ensure_dir, weakness
from warmstart.lean import Iterable, NamedTuple, dumps, sha256, suppress
from warmstart.store.layout import is_component, store_errors

CACHES = "caches"
ENDING = "ending"
LISTING = "listing"
BUNDLE = ".sqsh"
FILES = ".json"
DOUBTED = ".doubted"  # empty: a reader has found the bundle damaged, or gone
FACTS = "facts"

MOST_BYTES = 8 << 30  # of a bundle, and of all that are fetched for one job
MOST_ENTRIES = 50_000  # of a bundle, and of what is harvested from one job
MOST_OF_FILES = 32 << 20  # bytes of a bundle's list of files: readers hold it in memory, and jobs choose the names
_PER_FILE, _PER_ENTRY = 120, 40  # most bytes that JSON takes besides a name
LATEST_NS = (2**32 - 1) * 1_000_000_000  # a squashfs keeps seconds in 32 bits
_HEX = frozenset("0123456789abcdef")
SEAL = 65  # bytes of a seal and the end of its line
_FIRST = 64 << 10  # bytes that are read at first of a file of which some lines are wanted


class Damaged(OSError):
    """A file of the store is not what was written."""

    def __init__(self, problem: str) -> None:
        super().__init__(errno.EBADMSG, problem)


class File(NamedTuple):
    """One file of an entry, as it was when it was harvested."""

    size: int  # bytes
    sha256: str
    mtime_ns: int  # a squashfs keeps whole seconds only


Entries = dict[str, dict[str, File]]  # entry → path relative to the profile's directory → file


def content_digest(files: dict[str, File]) -> str:
    """Return a hash of an entry's content: paths, sizes and hashes of its files, without times."""
    content = sorted((path, file.size, file.sha256) for path, file in files.items())
    digest: str = sha256(dumps(content).encode()).hexdigest()
    return digest


def entry_weight(entry: str, paths: Iterable[str]) -> int:
    """Return the most bytes that an entry takes in a bundle's list of files, with every name in full."""
    return _length(entry) + _PER_ENTRY + sum(_length(path) + _PER_FILE for path in paths)


def _length(name: str) -> int:
    return len(dumps(name)) - 2


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
        return os.path.join(self.store, CACHES, *self[1:])


def make_namespace(where: Namespace) -> int:
    """Return a descriptor of a namespace's directory, which is made with its listing's if it is missing.

    Never makes the store itself: if its path is missing, it is usually not mounted. Raises `OSError`.
    """
    if not os.path.isdir(f"{where.path}/{LISTING}"):
        path = f"{where.store}/{CACHES}"
        ensure_dir(path, 0o700)
        for part in where[1:]:
            path += f"/{part}"
            ensure_dir(path, 0o755)
        ensure_dir(f"{path}/{LISTING}", 0o700)
    return os.open(where.path, DIRECTORY)


def scopes(store: str) -> list[str]:
    """Return the names of all scopes, sorted."""
    return _folders(f"{store}/{CACHES}")


def namespaces(store: str, scope: str) -> list[Namespace]:
    """Return all namespaces of a scope, sorted."""
    top = f"{store}/{CACHES}/{scope}"
    found = [(profile, name) for profile in _folders(top) for name in _folders(f"{top}/{profile}")]
    return [Namespace(store, scope, profile, name) for profile, name in found]


def _folders(path: str) -> list[str]:
    """Return the directories of a directory whose names the layout allows; [] if it is missing."""
    with store_errors("list the store"), suppress(FileNotFoundError), os.scandir(path) as items:
        return sorted(item.name for item in items if is_component(item.name) and item.is_dir(follow_symlinks=False))
    return []


def is_sha256(text: object) -> bool:
    """Return whether a value is a SHA-256 in lower-case hexadecimal."""
    return isinstance(text, str) and len(text) == 64 and _HEX.issuperset(text)


def is_bundle(name: str) -> bool:
    """Return whether a name is that of a bundle's file."""
    return name.endswith((BUNDLE, FILES, DOUBTED)) and is_sha256(name.rpartition(".")[0])


def sealed(text: bytes) -> bytes:
    """Return the content of a sealed file."""
    seal: str = sha256(text).hexdigest()
    return seal.encode() + b"\n" + text


def unsealed(data: bytes) -> bytes:
    """Return what a sealed file has below its seal; raises `Damaged` if it is not that of its content."""
    if data[:SEAL] != sealed(data[SEAL:])[:SEAL]:
        raise Damaged("its content is not that of its seal")
    return data[SEAL:]


def read_owned(name: str, limit: int, dir_fd: int | None = None, *, lines: int = 0) -> bytes:
    """Read a file that is never written in place, or at least so many `lines` of it.

    Raises `OSError`: with `EFBIG` if it has more than `limit` bytes; with `EPERM` if somebody else than the store's
    owner and root can change it, who would run code in the jobs that read it.
    """
    try:
        with closing(os.open(name, REGULAR, dir_fd=dir_fd)) as fd:
            status = os.fstat(fd)
            if status.st_size > limit:
                raise OSError(errno.EFBIG, f"larger than {limit} bytes")
            if weak := weakness(status, (0, os.geteuid())):
                raise PermissionError(errno.EPERM, weak)
            piece = min(status.st_size, _FIRST) if lines else status.st_size
            data = os.read(fd, piece)
            while len(data) < status.st_size and not 0 < lines <= data.count(b"\n"):
                if not (chunk := os.read(fd, max(piece, len(data)))):
                    break
                data += chunk
            return data
    except OSError as error:
        error.filename = name
        raise

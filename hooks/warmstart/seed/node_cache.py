"""The node's cache of bundles: each is fetched once, and found by its hash.

    <node>/bundles/               root, 0700
        <sha256>.sqsh             0444; mtime is the last use
        <sha256>.json             its place in the store, and in a second line its entries with their files
        <sha256>.fetching         its beginning; being fetched while a process holds a flock on it

A copy is named by its hash, so one that is there is always the right one. Its mode is 0444 because a process that gets
it as an open descriptor opens it again. `fetch` fetches the copies, `mounts` mounts them, `eviction` bounds them. Hot
path.
"""

from __future__ import annotations

import os

from warmstart.caches.store.layout import Entries, File, Namespace
from warmstart.caches.store.listing import Row
from warmstart.host import wire
from warmstart.host.files import closing, open_regular, opened_dir, read_small
from warmstart.lean import Collection, NamedTuple, suppress

BUNDLE, ABOUT, FETCHING = ".sqsh", ".json", ".fetching"
LARGEST = 64 << 20  # bytes of what is known about a copy
_LONGEST_PLACE = 4096


class Place(NamedTuple):
    """Where in the store a copy is from."""

    scope: str = ""  # "" if that is not known, as the rest
    profile: str = ""
    namespace: str = ""


class Copy(NamedTuple):
    """The copy of a bundle on this node."""

    where: Namespace
    row: Row
    directory: str
    fetched: int = 0  # bytes fetched from the store by this call; 0 if the copy was there

    @property
    def path(self) -> str:
        """Path of the squashfs file."""
        return f"{self.directory}/{self.row.sha256}{BUNDLE}"

    def entries(self, names: Collection[str] = ()) -> Entries:
        """Return all entries of the bundle with their files. Raises `BundleDamaged` if it lacks one of these."""
        found = entries_of(self.directory, self.row.sha256)
        if not found.keys() >= {*names}:
            from warmstart.caches.store.bundles import BundleDamaged

            raise BundleDamaged(bundle=self.row.sha256, problem="its listing names entries that it lacks")
        return found


def entries_of(directory: str, sha256: str) -> Entries:
    """Return all entries of a copy with their files; raises `FileNotFoundError` if this node has no such copy."""
    with opened_dir(directory) as fd:
        raw = wire.parse(read_small(sha256 + ABOUT, LARGEST, fd).partition(b"\n")[2])
    return {entry: {path: File(*file) for path, file in found.items()} for entry, found in raw.items()}


def here(directory: str, where: Namespace, row: Row) -> Copy | None:
    """Return the node's copy of a bundle, and record its use; None if there is none."""
    copy = Copy(where, row, directory)
    try:  # by name, in a directory of root's alone: ten bundles are thirty calls less
        os.utime(copy.path, follow_symlinks=False)
        return copy if os.stat(copy.path, follow_symlinks=False).st_size == row.size else None
    except FileNotFoundError:
        return None


def last_use(fd: int, sha256: str) -> float:
    """Return when a copy was used, 0.0 if it is gone."""
    try:
        return os.stat(sha256 + BUNDLE, dir_fd=fd, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def place_of(fd: int, sha256: str) -> Place:
    """Return where in the store a copy is from."""
    with suppress(OSError, ValueError, TypeError), closing(open_regular(sha256 + ABOUT, fd)) as about:
        scope, profile, namespace = wire.parse(os.read(about, _LONGEST_PLACE).partition(b"\n")[0])
        return Place(str(scope), str(profile), str(namespace))
    return Place()

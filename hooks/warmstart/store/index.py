"""The index of a namespace: its bundles, oldest first, their entries, and which bundle provides an entry.

Runs as the store's owner. Hot path. The index only saves readers from opening every manifest. A missing or damaged
index is rebuilt from the manifests. An update lists the directory again after writing and repeats if a bundle is
missing, so the last writer lists all bundles, even without a lock.

Within a scope, the bundle whose id sorts first provides an entry. The id of a new bundle sorts last, so the first
publisher keeps its entries. A bundle that replaces others (by compaction, or in a profile that keeps the newest) gets
an id one microsecond before the oldest of them and names them in `replaces`.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from warmstart.host import wire
from warmstart.host.files import DIRECTORY, REGULAR, opened_dir, unlink_if_there
from warmstart.host.wire import Json
from warmstart.store import blocklist, layout, manifest
from warmstart.store.atomic import replace
from warmstart.store.blocklist import Blocks
from warmstart.store.layout import MANIFEST, Namespace, is_bundle_id, store_errors
from warmstart.store.manifest import Entries, File, Manifest, ManifestUnreadable, is_sha256

FORMAT = 1
NAME = "index.json"
LARGEST = 256 << 20
UNCHANGED = "unchanged"
SUPERSEDED = "superseded"
SMALLER = "smaller"


class Listed(NamedTuple):
    """One bundle in the index."""

    bundle: str
    sha256: str
    size: int  # of the squashfs file, bytes
    entries: dict[str, int]  # entry → bytes of its files
    user: str  # name of the user whose job made it
    uid: int
    replaces: list[str]  # ids of the bundles that it replaces


class Index(NamedTuple):
    """The bundles of a namespace."""

    bundles: list[Listed]  # oldest first
    refused: dict[str, str]  # bundle → why its manifest is unusable

    def entries(self) -> set[str]:
        """Return the names of all entries."""
        return {entry for listed in self.bundles for entry in listed.entries}


class Base(NamedTuple):
    """The bundle that a job began with."""

    scope: str
    bundle: str


def read(directory: str, owner: str) -> Index:
    """Return the index of a namespace, rebuilt if it is missing or damaged; empty if there is no such namespace.

    A warm read takes four system calls on the store: open, fstat, read, close. An index of another format is not
    replaced until the next publish, because readers of two versions would rewrite it for ever. Raises `OSError`.
    """
    try:
        data = read_whole(os.path.join(directory, NAME), LARGEST)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EFBIG, errno.EINVAL, errno.ELOOP):
            raise
        data = b""
    index = _decode(data)
    if index is not None:
        return index
    try:
        fd = os.open(directory, DIRECTORY)
    except FileNotFoundError:
        return Index([], {})
    try:
        if not _is_other_format(data):
            with suppress(OSError):  # a full or read-only store is still readable
                return update(fd, owner)
        return _covering(fd, {})
    finally:
        os.close(fd)


def update(dir_fd: int, owner: str) -> Index:
    """Update the index to list all bundles of the directory, and return it; raises `OSError`."""
    index = _load(dir_fd)
    written = index
    while True:
        known = {listed.bundle: listed for listed in index.bundles} if index else {}
        index = _covering(dir_fd, known)
        if index != written:
            replace(dir_fd, owner, NAME, _encode(index))
            written = index
        covered = {listed.bundle for listed in index.bundles} | index.refused.keys()
        if covered.issuperset(_manifests(dir_fd)):
            return index


def rebuild(dir_fd: int, owner: str) -> Index:
    """Rebuild the index from the manifests alone, and return it; raises `OSError`."""
    unlink_if_there(NAME, dir_fd)
    return update(dir_fd, owner)


def _load(dir_fd: int) -> Index | None:
    try:
        return _decode(read_whole(NAME, LARGEST, dir_fd))
    except OSError:  # missing or unreadable: it is replaced
        return None


def _covering(dir_fd: int, known: dict[str, Listed]) -> Index:
    """Return an index of all bundles of the directory; reads only manifests that are not in `known`.

    A known bundle that the listing lacks is looked up by name, because an NFS client may list a stale directory.
    """
    bundles, refused = [], {}
    there = _manifests(dir_fd)
    for bundle in sorted(there | known.keys()):
        with suppress(FileNotFoundError):  # removed by maintenance
            if bundle not in there:
                os.stat(bundle + MANIFEST, dir_fd=dir_fd, follow_symlinks=False)
            listed = known.get(bundle) or _listed(dir_fd, bundle)
            if isinstance(listed, Listed):
                bundles.append(listed)
            else:
                refused[bundle] = listed
    return Index(bundles, refused)


def _manifests(dir_fd: int) -> set[str]:
    """List the bundles of the directory. It is opened again, because only then NFS revalidates its listing."""
    fd = os.open(".", DIRECTORY, dir_fd=dir_fd)
    try:
        names = (name.removesuffix(MANIFEST) for name in os.listdir(fd) if name.endswith(MANIFEST))
        return {name for name in names if is_bundle_id(name)}
    finally:
        os.close(fd)


def _listed(dir_fd: int, bundle: str) -> Listed | str:
    """Return a bundle as the index lists it, or why its manifest is unusable."""
    try:
        found = read_manifest(dir_fd, bundle)
    except ManifestUnreadable as error:
        return str(error.fields["problem"])
    sizes = {entry: sum(file.size for file in files.values()) for entry, files in found.entries.items()}
    whose = (found.producer.user, found.producer.uid)
    return Listed(bundle, found.sha256, found.size, sizes, *whose, found.replaces)


def read_manifest(dir_fd: int, bundle: str) -> Manifest:
    """Return the manifest of a bundle; raises `ManifestUnreadable`, or `FileNotFoundError` if it is gone."""
    try:
        data = read_whole(bundle + MANIFEST, manifest.LARGEST, dir_fd)
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.EINVAL, errno.ELOOP):
            raise ManifestUnreadable(bundle=bundle, problem=str(error.strerror)) from error
        raise
    return manifest.decode(bundle, data)


def read_whole(path: str, limit: int, dir_fd: int | None = None) -> bytes:
    """Read a file that is never written in place; raises `OSError` with `EFBIG` if it has more than `limit` bytes."""
    try:
        return _read_once(path, limit, dir_fd)
    except OSError as error:
        if error.errno != errno.ESTALE:  # NFS: the file was replaced while it was read
            raise
        return _read_once(path, limit, dir_fd)


def _read_once(path: str, limit: int, dir_fd: int | None) -> bytes:
    fd = os.open(path, REGULAR, dir_fd=dir_fd)
    try:
        size = os.fstat(fd).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        data = os.read(fd, size)
        while len(data) < size and (chunk := os.read(fd, size - len(data))):
            data += chunk
        return data
    finally:
        os.close(fd)


def _encode(index: Index) -> bytes:
    bundles = [listed._asdict() for listed in index.bundles]
    return json.dumps({"format": FORMAT, "bundles": bundles, "refused": index.refused}).encode()


def _decode(data: bytes) -> Index | None:
    """Decode what `_encode` wrote; return None for anything else."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            return None
        return Index([_row(row) for row in raw["bundles"]], wire.decode(dict[str, str], raw["refused"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _row(row: Json) -> Listed:
    """Decode one bundle; raises `ValueError` if it is invalid, for example an id that could be a path."""
    listed = wire.from_object(Listed, row)
    if not is_bundle_id(listed.bundle) or not is_sha256(listed.sha256) or listed.size < 0:
        raise ValueError(listed.bundle)
    return listed


def _is_other_format(data: bytes) -> bool:
    try:
        return bool(json.loads(data)["format"] != FORMAT)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def with_new_id(found: Manifest, before: Index) -> Manifest | None:
    """Set a bundle's id to sort after all others; return None if the namespace already has all its entries.

    The clocks of nodes differ: a bundle from a node with a slow clock must not replace entries of older bundles.
    """
    if before.entries().issuperset(found.entries):
        return None
    newest = max([*(listed.bundle for listed in before.bundles), *before.refused], default="")
    now = time.time_ns() // 1000
    made = max(now, layout.microseconds_of(newest) + 1) if newest else now
    return found._replace(bundle=layout.bundle_id(made, found.sha256), created=made / 1e6)


def with_older_id(found: Manifest, before: Index) -> Manifest | None:
    """Set the id of a bundle to sort just before the oldest that it replaces; return None if one of them is gone."""
    if not {listed.bundle for listed in before.bundles}.issuperset(found.replaces):
        return None
    oldest = layout.microseconds_of(min(found.replaces)) - 1
    return found._replace(bundle=layout.bundle_id(oldest, found.sha256), created=time.time())


def with_id_over(blocked: Blocks, based_on: str, found: Manifest, before: Index) -> Manifest | None:
    """Set the id of a bundle to sort before `based_on`, the bundle that its job began with ("" for none).

    Returns None if readers now take the entries from another bundle: newer work of another job is never replaced. The
    new bundle also sorts before bundles of blocked users, which readers skip.
    """
    having = _having(found.entries, before)
    if _current_bundle(having, blocked) != based_on:
        return None
    if not having:
        return with_new_id(found, before)
    return with_older_id(found._replace(replaces=[listed.bundle for listed in having]), before)


def needless(where: Namespace, based_on: Base | None, entries: Entries, owner: str) -> str:
    """Return why these entries need not replace those that the job began with; "" if they should.

    `entries` are those of the draft. `UNCHANGED`: the job began with the same content, or it is published already.
    `SUPERSEDED`: another job has published newer content. `SMALLER`: such a cache only grows, so a smaller one was
    started anew or is incomplete. Raises `StoreFailed` or `BlocksUnreadable`.
    """
    with store_errors("compare with the newest"):
        having = _having(entries, read(where.path, owner))
        current = _current_bundle(having, blocklist.read(where.store))
        files = _files(where._replace(scope=based_on.scope), based_on.bundle) if based_on else {}
        newest = _files(where, current) if current else {}
    mine = {path: file for each in entries.values() for path, file in each.items()}
    if _content(mine) in (_content(files), _content(newest)):
        return UNCHANGED
    if current and based_on != (where.scope, current):
        return SUPERSEDED
    return SMALLER if _size(mine) < _size(files) else ""


def _having(entries: Collection[str], before: Index) -> list[Listed]:
    """Return the bundles that have any of the entries, in the order in which readers take them."""
    return [listed for listed in before.bundles if not listed.entries.keys().isdisjoint(entries)]


def _current_bundle(having: list[Listed], blocked: Blocks) -> str:
    return next((listed.bundle for listed in having if not blocked.user(listed.user, listed.uid)), "")


def _files(where: Namespace, bundle: str) -> dict[str, File]:
    """Return the files of a bundle by path; empty if it or its namespace is gone."""
    try:
        with opened_dir(where.path) as fd:
            found = read_manifest(fd, bundle)
    except FileNotFoundError:
        return {}
    return {path: file for files in found.entries.values() for path, file in files.items()}


def _content(files: dict[str, File]) -> dict[str, tuple[int, str]]:
    return {path: (file.size, file.sha256) for path, file in files.items()}


def _size(files: dict[str, File]) -> int:
    return sum(file.size for file in files.values())

"""The index of a namespace: its bundles, oldest first, their entries, and which bundle provides an entry.

Runs as the store's owner. Hot path. The index only saves readers from opening every manifest: what it lacks is read
from the manifests, and a missing, damaged or unknown index is rebuilt. An update lists the directory again after
writing and repeats while something is missing; so the last writer covers all, without a lock.

Within a scope, the bundle whose id sorts first provides an entry. A new bundle's id sorts last, so the first
publisher keeps its entries. A bundle that replaces another (a compacted one, or one of a profile that keeps the
newest) gets an id one microsecond earlier and names the other in `replaces`.
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
    user: str  # whose job made it, by name
    uid: int
    replaces: list[str]  # the bundles that maintenance made it of


class Index(NamedTuple):
    """What a namespace holds."""

    bundles: list[Listed]  # oldest first
    refused: dict[str, str]  # bundle → why its manifest can't be used

    def entries(self) -> set[str]:
        """Return the names of all entries."""
        return {entry for listed in self.bundles for entry in listed.entries}


class Base(NamedTuple):
    """The bundle that a job began with."""

    scope: str
    bundle: str


def read(directory: str, owner: str) -> Index:
    """Return the index of a namespace, repaired where it must be; empty where there is no namespace.

    A warm read costs four system calls on the store: open, fstat, read, close. An index of another format
    is left alone (whoever publishes next writes it): readers of two versions would rewrite it for ever.
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
            with suppress(OSError):  # a full or read-only store can still be read
                return update(fd, owner)
        return _covering(fd, {})
    finally:
        os.close(fd)


def update(dir_fd: int, owner: str) -> Index:
    """Bring the index up to what the directory holds, and return it; raises `OSError`."""
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
    """Make the index anew from the manifests alone; raises `OSError`."""
    unlink_if_there(NAME, dir_fd)
    return update(dir_fd, owner)


def _load(dir_fd: int) -> Index | None:
    try:
        return _decode(read_whole(NAME, LARGEST, dir_fd))
    except OSError:  # whatever is wrong with it, it is replaced
        return None


def _covering(dir_fd: int, known: dict[str, Listed]) -> Index:
    """Return an index of all bundles of the directory, reading the manifests of those not known.

    A known bundle that the listing lacks is looked up by name: a client of NFS may list an old state.
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
    """Return the bundles of the directory, which is opened anew: NFS looks again only then."""
    fd = os.open(".", DIRECTORY, dir_fd=dir_fd)
    try:
        names = (name.removesuffix(MANIFEST) for name in os.listdir(fd) if name.endswith(MANIFEST))
        return {name for name in names if is_bundle_id(name)}
    finally:
        os.close(fd)


def _listed(dir_fd: int, bundle: str) -> Listed | str:
    """Return a bundle as the index lists it, or why it can't."""
    try:
        found = read_manifest(dir_fd, bundle)
    except ManifestUnreadable as error:
        return str(error.fields["problem"])
    sizes = {entry: sum(file.size for file in files.values()) for entry, files in found.entries.items()}
    whose = (found.producer.user, found.producer.uid)
    return Listed(bundle, found.sha256, found.size, sizes, *whose, found.replaces)


def read_manifest(dir_fd: int, bundle: str) -> Manifest:
    """Return the manifest of a bundle; `ManifestUnreadable`, or `FileNotFoundError` where it is gone."""
    try:
        data = read_whole(bundle + MANIFEST, manifest.LARGEST, dir_fd)
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.EINVAL, errno.ELOOP):
            raise ManifestUnreadable(bundle=bundle, problem=str(error.strerror)) from error
        raise
    return manifest.decode(bundle, data)


def read_whole(path: str, limit: int, dir_fd: int | None = None) -> bytes:
    """Return the content of a file that is never written in place; `EFBIG` beyond `limit` bytes."""
    try:
        return _read_once(path, limit, dir_fd)
    except OSError as error:
        if error.errno != errno.ESTALE:  # NFS: it was replaced while it was read
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
    """Return what `_encode` wrote, None for anything else."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            return None
        return Index([_row(row) for row in raw["bundles"]], wire.decode(dict[str, str], raw["refused"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _row(row: Json) -> Listed:
    """Return one bundle; `ValueError` unless names are no more than names."""
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
    """Give a bundle its id, younger than all there are; None where the scope has all its entries.

    Clocks of nodes differ; a bundle of a slow clock must not become the oldest and change what readers get.
    """
    if before.entries().issuperset(found.entries):
        return None
    newest = max([*(listed.bundle for listed in before.bundles), *before.refused], default="")
    now = time.time_ns() // 1000
    made = max(now, layout.microseconds_of(newest) + 1) if newest else now
    return found._replace(bundle=layout.bundle_id(made, found.sha256), created=made / 1e6)


def with_older_id(found: Manifest, before: Index) -> Manifest | None:
    """Give a bundle that replaces others an id before that of the oldest; None where one of them has gone."""
    if not {listed.bundle for listed in before.bundles}.issuperset(found.replaces):
        return None
    oldest = layout.microseconds_of(min(found.replaces)) - 1
    return found._replace(bundle=layout.bundle_id(oldest, found.sha256), created=time.time())


def with_id_over(blocked: Blocks, based_on: str, found: Manifest, before: Index) -> Manifest | None:
    """Give a bundle an id before `based_on`, the bundle from which its content grew ("": it grew from nothing).

    None if readers take the entry from another bundle by now: another job's newer work is never replaced silently.
    Readers skip bundles of blocked users, so the new one goes before those, too.
    """
    having = _having(found.entries, before)
    if _current_bundle(having, blocked) != based_on:
        return None
    if not having:
        return with_new_id(found, before)
    return with_older_id(found._replace(replaces=[listed.bundle for listed in having]), before)


def needless(where: Namespace, based_on: Base | None, entries: Entries, owner: str) -> str:
    """Return why these entries need not replace those that the job began with; "" if they should.

    `entries` are a draft's. `UNCHANGED`, `SUPERSEDED`; `SMALLER`: such caches grow, so one that shrank was begun anew
    or cut short. `StoreFailed`.
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
    """Return the bundles that have any of the entries, the one that readers take them from first."""
    return [listed for listed in before.bundles if not listed.entries.keys().isdisjoint(entries)]


def _current_bundle(having: list[Listed], blocked: Blocks) -> str:
    return next((listed.bundle for listed in having if not blocked.user(listed.user, listed.uid)), "")


def _files(where: Namespace, bundle: str) -> dict[str, File]:
    """Return the files of a bundle; none where it, or its namespace, has gone."""
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

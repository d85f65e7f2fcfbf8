"""The index of a namespace: which bundles there are, oldest first, and the names of their entries.

It only saves readers the work of opening every manifest: what it lacks is read from the manifests, and where
it is missing, damaged or of another format it is made again. An update lists the directory again after it
has written and repeats while something is missing: so, without any lock, the last writer covers all
(design, rule 1). Runs as the store's owner. Hot path.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any, NamedTuple

from warmstart.host.files import DIRECTORY, REGULAR
from warmstart.store import manifest
from warmstart.store.layout import MANIFEST, is_bundle_id
from warmstart.store.manifest import ManifestUnreadable
from warmstart.store.publish import replace

FORMAT = 1
NAME = "index.json"
LARGEST = 256 << 20
# A file that was replaced while a client of NFS read it.
_STALE_RETRIES = 3


class Listed(NamedTuple):
    """One bundle in the index."""

    bundle: str
    sha256: str
    size: int  # of the squashfs file, bytes
    entries: dict[str, int]  # entry → bytes of its files


class Index(NamedTuple):
    """What a namespace holds."""

    bundles: list[Listed]  # oldest first
    refused: dict[str, str]  # bundle → why its manifest can't be used

    def entries(self) -> set[str]:
        """Return the names of all entries."""
        return {entry for listed in self.bundles for entry in listed.entries}


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
        return _covering(fd, {}) if _is_other_format(data) else update(fd, owner)
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


def read_whole(path: str, limit: int, dir_fd: int | None = None) -> bytes:
    """Return the content of a file that is never written in place; `EFBIG` beyond `limit` bytes."""
    for attempt in range(_STALE_RETRIES):
        try:
            return _read_once(path, limit, dir_fd)
        except OSError as error:
            if error.errno != errno.ESTALE or attempt + 1 == _STALE_RETRIES:
                raise
    raise AssertionError("unreachable")


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
    for bundle in sorted(_manifests(dir_fd) | known.keys()):
        try:
            listed = known.get(bundle) if bundle + MANIFEST in _names(dir_fd, bundle) else None
            bundles.append(listed or _listed(dir_fd, bundle))
        except FileNotFoundError:  # removed by upkeep
            continue
        except ManifestUnreadable as error:
            refused[bundle] = str(error.fields["problem"])
    return Index(bundles, refused)


def _encode(index: Index) -> bytes:
    bundles = [listed._asdict() for listed in index.bundles]
    return json.dumps({"format": FORMAT, "bundles": bundles, "refused": index.refused}).encode()


def _decode(data: bytes) -> Index | None:
    return None

"""What lies on a node of bundles, and the locks on it; the files of copies are named by their bundles' hashes.

    <node>/bundles/               root, 0700
        <sha256>.sqsh             0444; mtime is the last use
        <sha256>.json             its place in the store, and in a second line its entries with their files
        <sha256>.fetching         its beginning; being fetched while a process holds a flock on it
    <node>/layers/<sha256>/       root, 0700; the copy, mounted `ro,nosuid,nodev`

A copy is named by its hash, so one that is there is always the right one. Its mode is 0444 because a process that gets
it as an open descriptor opens it again. Hot path.
"""

from __future__ import annotations

import errno
import os

from warmstart.caches.store.layout import Entries, File
from warmstart.caches.store.listing import Row
from warmstart.errors import ResourceError
from warmstart.host import files, wire
from warmstart.host.deadline import Deadline
from warmstart.host.files import closing, ensure_dir, opened_dir, read_small
from warmstart.lean import Collection, Iterator, contextmanager

BUNDLE, ABOUT, FETCHING = ".sqsh", ".json", ".fetching"
LARGEST = 64 << 20  # bytes of what is known about a copy
_LOCK_PAUSE_S = 0.005


class FetchOverBudget(ResourceError):
    """A bundle is not on the node, and its fetch takes more bytes or time than there are."""

    code = "fetch-over-budget"
    template = "bundle {bundle}: {problem}"
    hint = "later jobs go on with what came; raise seed.fetch_budget in the policy, or what nodes keep of its kind"


def is_here(directory: str, row: Row) -> bool:
    """Return whether the node has a copy of a bundle, and record its use."""
    path = path_of(directory, row.sha256)
    try:  # by name, in a directory of root's alone: ten bundles are thirty calls less
        os.utime(path, follow_symlinks=False)
        return os.stat(path, follow_symlinks=False).st_size == row.size
    except FileNotFoundError:
        return False


def path_of(directory: str, sha256: str) -> str:
    """Return the path of a copy's squashfs file."""
    return f"{directory}/{sha256}{BUNDLE}"


def entries_of(directory: str, sha256: str, names: Collection[str] = ()) -> Entries:
    """Return all entries of a copy with their files.

    Raises `FileNotFoundError` if this node has no such copy, `BundleDamaged` if it lacks one of the `names`.
    """
    with opened_dir(directory) as fd:
        raw = wire.parse(read_small(sha256 + ABOUT, LARGEST, fd).partition(b"\n")[2])
    if not raw.keys() >= {*names}:
        from warmstart.caches.store.bundles import BundleDamaged

        raise BundleDamaged(bundle=sha256, problem="its listing names entries that it lacks")
    return {entry: {path: File(*file) for path, file in found.items()} for entry, found in raw.items()}


@contextmanager
def exclusive(directory: str, deadline: Deadline) -> Iterator[int]:
    """Hold the lock for mounting and unmounting, a flock on the directory; yields a descriptor of it."""
    try:
        fd = os.open(directory, files.DIRECTORY)
    except FileNotFoundError:
        ensure_dir(directory, 0o700)
        fd = os.open(directory, files.DIRECTORY)
    with closing(fd):
        if not files.wait_flock(fd, deadline, _LOCK_PAUSE_S):
            raise OSError(errno.ETIME, "another job of this node is still mounting", directory)
        yield fd

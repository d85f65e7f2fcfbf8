"""Collect new and changed entries from a job's cache: root copies them whole into its stage.

The job's processes may still run and can change every byte and name of the tree. An entry is copied whole or not at
all; rejections are counted by reason. Files are opened without following links. Each is read once, hashed during the
copy, and read only up to the size that it had when opened; a check after the copy finds files that changed.

Of a cache that was seeded by an overlay, names come from the upper layer, which has only what the job made or changed:
the cost depends on what is new and not on what was seeded. Content comes from the overlay itself. All files of an entry
that was not seeded are in the upper layer, because whiteouts hide everything else.

A single-file cache is copied under its tool's lock: `<file>.lock`, flock(2), shared, never created, never unlinked.
Any process of the job may hold the lock for ever, so the wait is short; a locked file is left out.
"""

from __future__ import annotations

import os
import posixpath
import stat

from warmstart.caches.store.layout import MOST_OF_FILES, Entries, File, entry_weight
from warmstart.harvest.known import Known
from warmstart.harvest.scan import Found, Rules, scan
from warmstart.harvest.stage import LimitReached, Stage
from warmstart.host import files
from warmstart.host.deadline import Deadline
from warmstart.host.files import closing, mount_id
from warmstart.host.untrusted import GONE, Tree, TurnedAway, open_branch
from warmstart.lean import Callable, Collection, Iterator, NamedTuple, contextmanager

HELD = "its lock is held"
TOO_LARGE = "larger than the limit"
MOST_ENTRIES = "more entries than the limit"
MOST_BYTES = "more bytes than the limit"
MOST_NAMES = "more than a manifest can name"
BASE_GONE = "changed, but its bundle is gone"
EMPTIED = "lost files and no more, as by a cleaner; it stays published"
UNSETTLED = "changed a moment ago"
ROOT = 0  # uid

NAMES_PER_ENTRY = 10  # names scanned per entry of the limit: locks and temporary files count, too
LONGEST_DRAFT = MOST_OF_FILES - (64 << 10)  # bytes of JSON; the store refuses a longer one
_LOCK_SECONDS = 2.0


class Place(NamedTuple):
    """Where a profile's cache is, and how it is read."""

    base: int  # descriptor of a directory that only root can change, or of an overlay
    path: str  # from it to the cache, through directories of the job (`cache/numba`); "" for `base` itself
    owner: int  # uid: files of others are not copied
    upper: int | None = None  # descriptor of an overlay's upper layer
    lock: str = ""  # what the tool appends to a file's name to name its lock file, "" for none
    compare: bool = True  # whether seeded entries that are gone or have changed are the job's work, and count


class Limits(NamedTuple):
    """Bounds of a harvest."""

    size: int  # bytes; the sum of file sizes, holes included
    entries: int
    deadline: Deadline
    settled_ns: int = 0  # of a job that runs: by ctime, what changed later is left out; 0 after its end


class Collected(NamedTuple):
    """What was copied to the stage, and what was left out."""

    found: Found  # by name; files that could not be copied are among its rejections
    entries: Entries
    changed: list[str]  # seeded entries that the job changed: those among `entries`, and those that it removed
    size: int = 0  # bytes of all files
    truncated: str = ""  # why the harvest ended early, or ""

    @property
    def removed(self) -> list[str]:
        """The seeded entries that the job removed."""
        return [entry for entry in self.changed if entry not in self.entries]


def collect(
    place: Place, entry_of: Callable[[str], str | None], known: Known, stage: Stage, limits: Limits
) -> Collected:
    """Copy the entries of a profile's cache into the stage that are not `known`, or that the job has changed.

    All directories must be on the mount of `place.base`: a job can mount a FUSE file system on any of its own. A
    missing cache counts as empty. `entry_of` maps a file's path below it (any name; surrogates for what is not UTF-8)
    to its entry, or to None if the file is never harvested. All files of an entry `a/b` are below `a/`.

    Raises `OSError` if the stage fails; unreadable files of the job are rejections.
    """
    mount = mount_id(place.base)
    try:
        top = open_branch(place.path, place.base, mount)
    except TurnedAway as turned:
        found = Found()
        if turned.reason != GONE:
            found.reject(place.path, turned.reason, None)
        return Collected(found, {}, [])
    with closing(top):
        names = top if place.upper is None else place.upper
        rules = Rules(entry_of, limits.entries * NAMES_PER_ENTRY, limits.deadline, upper=place.upper is not None)
        copy = _Copy(place, top, mount, scan(names, mount_id(names), rules), known, stage, limits)
        try:
            return copy.all(entry_of)
        finally:
            copy.close()


class _Copy:
    """Copies the entries of one harvest."""

    def __init__(  # noqa: PLR0917 - from where, what of it, and where to
        self, place: Place, top: int, mount: str, found: Found, known: Known, stage: Stage, limits: Limits
    ) -> None:
        self._entries: Entries = {}
        self._changed: list[str] = []
        self._size = 0
        self._draft = 0  # upper bound of the manifest so far, in bytes of JSON
        self._tree = Tree(top, mount, place.owner)
        # Of a seeded entry, files that the job left alone come from the layers below; where the kernel cannot map ids
        # they belong to root, and so do the job's own copies of them.
        self._given = self._tree if place.upper is None else Tree(top, mount, place.owner, ROOT)
        self._place = place
        self._found = found
        self._known = known
        self._stage = stage
        self._limits = limits

    def close(self) -> None:
        """Close the trees."""
        for tree in {self._tree, self._given}:
            tree.close()

    def all(self, entry_of: Callable[[str], str | None]) -> Collected:
        """Copy the seeded entries that the job changed, then the new ones, within the limits."""
        found, truncated = self._found, self._found.truncated
        try:
            for entry in sorted(self._suspects(entry_of)) if self._place.compare else ():
                self._one_seeded(entry, found.entries.get(entry, []))
            for entry in sorted(filter(found.is_whole, found.entries)):
                if not self._known.has(entry):
                    self._add(entry, self._whole(self._tree, entry, sorted(found.entries[entry]), ()))
        except LimitReached as reached:
            truncated = truncated or reached.reason
        return Collected(found, self._entries, self._changed, self._size, truncated)

    def _suspects(self, entry_of: Callable[[str], str | None]) -> set[str]:
        """Return the seeded entries that may have changed, but for those of which something was rejected."""
        if self._place.upper is None:
            looked = [entry for entry in self._known.sources if self._looks_changed(entry)]
        else:
            looked = self._known.named_by(self._found.touched, entry_of)
        return {*looked} - self._found.spoilt

    def _looks_changed(self, entry: str) -> bool:
        """Return whether a seeded entry of a whole tree has other files, or files of another size or mtime."""
        given = self._known.files(entry)
        if not given:  # nobody knows what it was
            return False
        if {*self._found.entries.get(entry, ())} != given.keys():
            return True
        try:
            there = {path: self._tree.status(path) for path in sorted(given)}
        except TurnedAway:
            return True
        return any(
            (there[path].st_size, there[path].st_mtime_ns) != (file.size, file.mtime_ns) for path, file in given.items()
        )

    def _one_seeded(self, entry: str, paths: Collection[str]) -> None:
        """Copy a seeded entry that the job changed; one that it removed is only listed."""
        given = self._known.files(entry)
        if not given:
            self._found.reject(entry, BASE_GONE, entry)
            return
        taken = self._whole(self._given, entry, sorted({*given, *paths}), given)
        if taken is None:
            return
        there, was = _content(taken), _content(given)
        if there < was and (taken or self._has_directory(entry)):
            self._found.reject(entry, EMPTIED, entry)
            self._stage.discard(taken)
        elif there == was:
            self._stage.discard(taken)
        else:
            self._changed.append(entry)
            self._add(entry, taken)

    def _has_directory(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(self._given.status(path).st_mode)
        except TurnedAway:
            return False

    def _add(self, entry: str, taken: dict[str, File] | None) -> None:
        if taken:
            self._entries[entry] = taken
            self._size += sum(file.size for file in taken.values())
        if taken is not None:
            self._draft += entry_weight(entry, taken)

    def _whole(self, tree: Tree, entry: str, paths: list[str], optional: Collection[str]) -> dict[str, File] | None:
        """Copy all files of an entry, but for those of `optional` that are gone; None, and no file, if it is rejected.

        Raises `LimitReached`.
        """
        if len(self._entries) >= self._limits.entries:
            raise LimitReached(MOST_ENTRIES)
        if self._draft + entry_weight(entry, paths) > LONGEST_DRAFT:
            raise LimitReached(MOST_NAMES)
        taken: dict[str, File] = {}
        path, size = entry, 0
        try:
            for path in paths:
                try:
                    taken[path] = self._file(tree, path, size)
                except TurnedAway as turned:
                    if turned.reason != GONE or path not in optional:
                        raise
                else:
                    size += taken[path].size
            self._require_settled(tree, entry, taken)
        except TurnedAway as turned:
            self._found.reject(path, turned.reason, entry)
            self._stage.discard(taken)
            return None
        except BaseException:
            self._stage.discard(taken)
            raise
        return taken

    def _file(self, tree: Tree, path: str, entry_size: int) -> File:
        """Copy one file; `entry_size` is the bytes already copied of its entry."""
        lock = self._place.lock and path + self._place.lock
        with tool_lock(tree, lock, self._limits.deadline), closing(tree.open_file(path)) as source:
            entry_size += os.fstat(source).st_size
            if entry_size > self._limits.size:
                raise TurnedAway(TOO_LARGE)
            if self._size + entry_size > self._limits.size:
                raise LimitReached(MOST_BYTES)
            return self._stage.copy_in(source, path, self._limits.deadline)

    def _require_settled(self, tree: Tree, entry: str, paths: Collection[str]) -> None:
        """Of a job that runs: raise `TurnedAway` if something of an entry has changed of late, or while it was copied.

        By ctime, which the job cannot set, of its files and of the directories that are its alone.
        """
        folders = {folder for path in paths for folder in _folders(path, entry)}
        for path in sorted({*paths, *folders}) if self._limits.settled_ns else ():
            if tree.status(path).st_ctime_ns > self._limits.settled_ns:
                raise TurnedAway(UNSETTLED)


def _content(of: dict[str, File]) -> set[tuple[str, int, str]]:
    return {(path, file.size, file.sha256) for path, file in of.items()}


def _folders(path: str, entry: str) -> Iterator[str]:
    """Yield the directories of a file that are its entry's alone."""
    folder = posixpath.dirname(path)
    while folder == entry or folder.startswith(f"{entry}/"):
        yield folder
        folder = posixpath.dirname(folder)


@contextmanager
def tool_lock(tree: Tree, path: str, deadline: Deadline) -> Iterator[None]:
    """Hold the lock file at `path` shared for a `with`; do nothing if `path` is "" or there is no such file.

    Raises `TurnedAway` if another process holds it, or if the file system has no locks.
    """
    try:
        fd = tree.open_file(path) if path else -1
    except TurnedAway as turned:
        if turned.reason != GONE:
            raise
        fd = -1
    if fd < 0:
        yield
        return
    with closing(fd):
        try:
            is_locked = files.wait_flock(fd, deadline.within(_LOCK_SECONDS), shared=True)
        except OSError as error:  # the file system has no locks, so the tool cannot lock either
            raise TurnedAway(HELD) from error
        if not is_locked:
            raise TurnedAway(HELD)
        yield

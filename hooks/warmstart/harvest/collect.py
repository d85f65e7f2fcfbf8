"""Collect new entries from a job's cache: root copies them whole into a stage of its own.

The job's processes may still run and can change every byte and name of the tree. An entry is copied whole or not at
all; rejections are counted by reason. Files are opened without following links. Each is read once, hashed during the
copy, and read only up to the size that it had when opened; a check after the copy finds files that changed. The stage
is a directory that root owns, 0700. A file there keeps its mtime, but not its mode, owner or xattrs.

A single-file cache is copied under its tool's lock: `<file>.lock`, flock(2), shared, never created, never unlinked.
Any process of the job may hold the lock for ever, so the wait is short; a locked file is left out.
"""

from __future__ import annotations

import errno
import os
import posixpath

from warmstart.caches.store.layout import LATEST_NS, MOST_OF_FILES, Entries, File, entry_weight
from warmstart.harvest.scan import OUT_OF_TIME, Found, Rules, Tally, scan
from warmstart.harvest.seeded import NOTHING_SEEDED, SeededEntries
from warmstart.host import files
from warmstart.host.copying import ReadFailed, copy_data
from warmstart.host.deadline import Deadline
from warmstart.host.files import closing, mount_id
from warmstart.host.space import Reservation
from warmstart.host.untrusted import GONE, UNREADABLE, Tree, TurnedAway, open_branch
from warmstart.lean import TYPE_CHECKING, Callable, Collection, Container, Iterator, NamedTuple, contextmanager, partial

if TYPE_CHECKING:
    from warmstart.seed.overlay_end import OpenedOverlay

CHANGED = "changed while it was read"
HELD = "its lock is held"
TOO_LARGE = "larger than the limit"
MOST_ENTRIES = "more entries than the limit"
MOST_BYTES = "more bytes than the limit"
MOST_NAMES = "more than a manifest can name"
STAGE_FULL = "the stage is full"
BASE_GONE = "changed, but its bundle is gone"
EMPTIED = "lost files and no more, as by a cleaner; it stays published"
ROOT = 0  # uid

NAMES_PER_ENTRY = 10  # names scanned per entry of the limit: locks and temporary files count, too
LONGEST_DRAFT = MOST_OF_FILES - (64 << 10)  # bytes of JSON; the store refuses a longer one

_BLOCK = 4096  # bytes; what a small file takes on a disk
_LOCK_SECONDS = 2.0


class OutOfTime(Exception):  # never leaves the harvest
    """The deadline passed while a file was being copied."""


class _EntryRejected(Exception):
    """A file of an entry cannot be copied, so the entry is left out."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


class _LimitReached(Exception):
    """A limit is reached: the harvest ends here and keeps what it has."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HarvestLimits(NamedTuple):
    """Bounds of one harvest of one profile."""

    max_size: int  # bytes; the sum of file sizes, holes included
    max_entries: int
    deadline: Deadline
    settled_ns: int = 0  # of a job that runs; as in `scan.Rules`


class Collected(NamedTuple):
    """The result of a harvest: what was copied to the stage, and what was left out."""

    entries: Entries
    changed: list[str]  # seeded entries that the job changed: those among `entries`, and those that it removed
    size: int  # bytes of all files
    skipped: int  # files of entries in `skip`
    ignored: dict[str, int]  # files that belong to no entry: reason → number of files
    ignored_examples: list[tuple[str, str]]  # at most 5, none of which is a lock or a temporary file
    rejected: dict[str, int]  # reason → number of rejections
    examples: list[tuple[str, str]]  # at most 20 pairs: path in printable ASCII, reason
    truncated: str  # why the harvest ended early, or ""
    saw_changed: bool = True  # whether all seeded entries that look changed were looked at
    is_empty: bool = True  # whether the job left nothing at all; of an overlay, not even a directory in its upper layer
    hides: bool = False  # whether the job removed something that an overlay showed it


def collect(
    base_fd: int,
    path: str,
    *,
    owner: int,
    entry_of: Callable[[str], str | None],
    skip: Container[str],
    stage: Stage,
    limits: HarvestLimits,
    seeded: SeededEntries = NOTHING_SEEDED,
    lock: str = "",
) -> Collected:
    """Copy the entries of a profile's directory into the stage.

    `base_fd` is a directory that only root can change (the run's). `path` leads from it to the profile's directory,
    through directories of the job (`cache/numba`). All of them must be on the mount of `base_fd`: a job can mount a
    FUSE file system on any directory of its own. A missing directory counts as empty.

    `entry_of` maps a file's path below the profile's directory (any name; surrogates for what is not UTF-8) to its
    entry, or to None if the file is never harvested. All files of an entry `a/b` are below `a/`. Entries in `skip` are
    already published; those of `seeded` are copied if the job changed them. Only files of uid `owner` are copied.
    `lock` is the suffix that the tool appends to a file's name to name its lock file, "" for none.

    Raises `OSError` if the stage fails; unreadable files of the job are rejections.
    """
    mount = mount_id(base_fd)
    try:
        top_fd = open_branch(path, base_fd, mount)
    except TurnedAway as turned:
        tally = Tally()
        if turned.reason != GONE:
            tally.add(path, turned.reason)
        return Collected({}, [], 0, 0, {}, [], tally.counts, tally.examples, "")
    try:
        rules = _rules(entry_of, skip, seeded, limits, upper=False)
        copy = _Copy(Tree(top_fd, mount, owner), stage, limits, lock)
        look = partial(scan, top_fd, mount, rules)
        return copy.all(look, rules, seeded, lambda found: seeded.with_other_times(found.seeded))
    finally:
        os.close(top_fd)


def collect_overlay(
    overlay: OpenedOverlay,
    *,
    owner: int,
    entry_of: Callable[[str], str | None],
    skip: Container[str],
    stage: Stage,
    limits: HarvestLimits,
    seeded: SeededEntries = NOTHING_SEEDED,
) -> Collected:
    """Copy the new and changed entries of a profile that was seeded by an overlay; arguments and errors as `collect`.

    File names come from the upper layer, which has only what the job made or changed: the cost depends on what is new
    and not on what was seeded. Content comes from the overlay itself. All files of an entry that was not seeded are in
    the upper layer, because whiteouts hide everything else. Of a seeded entry, files that the job left alone come from
    the layers below; where the kernel cannot map ids they belong to root, and so do the job's own copies of them.
    """
    rules = _rules(entry_of, skip, seeded, limits, upper=True)
    mount = mount_id(overlay.merged)
    copy = _Copy(Tree(overlay.merged, mount, owner), stage, limits, given=Tree(overlay.merged, mount, owner, ROOT))
    look = partial(scan, overlay.upper, mount_id(overlay.upper), rules)
    return copy.all(look, rules, seeded, lambda found: seeded.below(found.touched, entry_of))


def _rules(
    entry_of: Callable[[str], str | None],
    skip: Container[str],
    seeded: SeededEntries,
    limits: HarvestLimits,
    *,
    upper: bool,
) -> Rules:
    most = limits.max_entries * NAMES_PER_ENTRY
    return Rules(entry_of, skip, seeded, most, limits.deadline, upper, limits.settled_ns)


class _Copy:
    """Copies the entries of one harvest; closes its trees."""

    def __init__(
        self, tree: Tree, stage: Stage, limits: HarvestLimits, lock: str = "", given: Tree | None = None
    ) -> None:
        """`given` is the tree to read seeded entries in, by default `tree`."""
        self._entries: Entries = {}
        self._changed: list[str] = []
        self._size = 0
        self._draft = 0  # upper bound of the manifest so far, in bytes of JSON
        self._tree = tree
        self._given = given or tree
        self._stage = stage
        self._limits = limits
        self._lock = lock

    def all(
        self,
        look: Callable[[Tally], Found],
        rules: Rules,
        seeded: SeededEntries,
        suspects: Callable[[Found], Collection[str]],
    ) -> Collected:
        """Copy those of the seeded `suspects` that the job changed, then the new entries, within the limits.

        Of a job that runs, what has changed by the end of it is discarded.
        """
        tally = Tally()
        scanned = look(tally)
        truncated, saw_changed = scanned.truncated, False
        changed = {*suspects(scanned)} - scanned.rejected - scanned.unsettled
        try:
            try:
                for entry in sorted(changed):
                    with _rejections(tally):
                        self._one_seeded(entry, scanned.seeded.get(entry, {}), seeded)
                saw_changed = not scanned.truncated
                for entry in sorted(scanned.entries):
                    with _rejections(tally):
                        self._add(entry, self._whole(self._tree, entry, scanned.entries[entry], ()))
            except _LimitReached as reached:
                truncated = truncated or reached.reason
            if rules.settled_ns:
                self._drop_moved(scanned, look(Tally()))
        finally:
            for tree in {self._tree, self._given}:
                tree.close()
        unchanged = scanned.seeded.keys() - set(self._changed)
        skipped = scanned.skipped + sum(len(scanned.seeded[entry]) for entry in unchanged)
        return Collected(
            entries=self._entries,
            changed=self._changed,
            size=self._size,
            skipped=skipped,
            ignored=scanned.ignored,
            ignored_examples=scanned.ignored_examples,
            rejected=tally.counts,
            examples=tally.examples,
            truncated=truncated,
            saw_changed=saw_changed,
            is_empty=scanned.is_empty,
            hides=scanned.hides or not self._entries.keys() >= {*self._changed},
        )

    def _drop_moved(self, before: Found, after: Found) -> None:
        """Discard the entries of which something has changed while they were copied."""

        def paths(found: Found, entry: str) -> Collection[str]:
            return sorted(found.seeded.get(entry, found.entries.get(entry, ())))

        moved = [e for e in self._entries if e in after.unsettled or paths(before, e) != paths(after, e)]
        for entry in moved:
            self._stage.discard(list(self._entries.pop(entry)))
        self._changed = [entry for entry in self._changed if entry not in moved]

    def _one_seeded(self, entry: str, paths: Collection[str], seeded: SeededEntries) -> None:
        """Copy a seeded entry that the job changed; one that it removed is only listed."""
        given = seeded.files(entry)
        if not given:
            raise _EntryRejected(entry, BASE_GONE)
        taken = self._whole(self._given, entry, sorted({*given, *paths}), given)
        if taken and not seeded.is_changed(entry, taken):
            self._stage.discard(list(taken))
            return
        if seeded.has_lost(entry, taken) and (taken or self._given.has_directory(entry)):
            self._stage.discard(list(taken))
            raise _EntryRejected(entry, EMPTIED)
        self._changed.append(entry)
        if taken:
            self._add(entry, taken)
        else:
            self._draft += entry_weight(entry, ())

    def _add(self, entry: str, taken: dict[str, File]) -> None:
        self._entries[entry] = taken
        self._size += sum(file.size for file in taken.values())
        self._draft += entry_weight(entry, taken)

    def _whole(self, tree: Tree, entry: str, paths: list[str], optional: Collection[str]) -> dict[str, File]:
        """Copy all files of an entry, or none; leaves out those of `optional` that are gone."""
        if len(self._entries) >= self._limits.max_entries:
            raise _LimitReached(MOST_ENTRIES)
        if self._draft + entry_weight(entry, paths) > LONGEST_DRAFT:
            raise _LimitReached(MOST_NAMES)
        taken: dict[str, File] = {}
        size = 0
        try:
            for path in paths:
                try:
                    taken[path] = self._file(tree, path, size)
                except _EntryRejected as rejected:
                    if rejected.reason != GONE or path not in optional:
                        raise
                else:
                    size += taken[path].size
        except BaseException:
            self._stage.discard(list(taken))
            raise
        return taken

    def _file(self, tree: Tree, path: str, entry_size: int) -> File:
        """Copy one file; `entry_size` is the bytes already copied of its entry."""
        try:
            lock = tool_lock(tree, self._lock and path + self._lock, self._limits.deadline)
            with lock, closing(tree.open_file(path)) as source:
                self._check_size(path, entry_size + os.fstat(source).st_size)
                return self._stage.copy_in(source, path, self._limits.deadline)
        except TurnedAway as turned:
            raise _EntryRejected(path, turned.reason) from None
        except OutOfTime:
            raise _LimitReached(OUT_OF_TIME) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _LimitReached(STAGE_FULL) from None
            raise

    def _check_size(self, path: str, entry_size: int) -> None:
        if entry_size > self._limits.max_size:
            raise _EntryRejected(path, TOO_LARGE)
        if self._size + entry_size > self._limits.max_size:
            raise _LimitReached(MOST_BYTES)


@contextmanager
def _rejections(tally: Tally) -> Iterator[None]:
    """Count an entry that cannot be copied, and go on with the next."""
    try:
        yield
    except _EntryRejected as rejected:
        tally.add(rejected.path, rejected.reason)


class Stage:
    """Root's directory for harvested files; empty at first.

    Every byte is reserved before it is written, because several epilogs may share the disk.
    """

    def __init__(self, fd: int, space: Reservation | None = None, copies: int = 2) -> None:
        """Use the directory `fd`, which the caller closes.

        `space` (default: a reservation of its own) then holds as many bytes as were copied, times `copies` - 1: with
        2 those of a bundle of the files.
        """
        self._fd = fd
        self._made: set[str] = {""}
        self._space = space or Reservation(fd)
        self._copies = copies
        self._copied = 0  # bytes

    def copy_in(self, source: int, path: str, deadline: Deadline) -> File:
        """Copy an open file to `path`; return its size, hash and mtime. Holes stay holes.

        Raises `TurnedAway` if the file changed meanwhile or cannot be read, `OutOfTime` at the deadline, `OSError` if
        the stage's disk fails or is at its floor. The incomplete copy is then removed.
        """
        self._make_parents(posixpath.dirname(path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        out = os.open(path, flags, 0o600, dir_fd=self._fd)
        try:
            before = os.fstat(source)
            sha256 = self._copy(source, out, before.st_size, deadline)
            if _state(os.fstat(source)) != _state(before):
                raise TurnedAway(CHANGED)
            mtime_ns = min(max(before.st_mtime_ns, 0), LATEST_NS)
            os.fchmod(out, 0o644)
            os.utime(out, ns=(mtime_ns, mtime_ns))
        except BaseException:
            self.discard([path])
            raise
        finally:
            os.close(out)
        return File(before.st_size, sha256, mtime_ns)

    def _copy(self, source: int, out: int, size: int, deadline: Deadline) -> str:
        def watch(more: int) -> None:
            if deadline.expired():
                raise OutOfTime
            self._reserve(more)

        try:
            copied = copy_data(source, out, size, watch)
        except ReadFailed as error:
            raise TurnedAway(UNREADABLE) from error
        if copied.size != size:
            raise TurnedAway(CHANGED)
        return copied.sha256

    def _reserve(self, more: int) -> None:
        """Reserve space for `more` bytes that are about to be written, and for the bundle."""
        more = -(-more // _BLOCK) * _BLOCK
        kept = self._copied * (self._copies - 1)
        self._space.hold(max(self._space.size, kept + more * self._copies))
        self._space.hold(self._space.size - more)
        self._copied += more

    def discard(self, paths: list[str]) -> None:
        """Remove copied files, and directories that are then empty."""
        for path in paths:
            os.unlink(path, dir_fd=self._fd)
        for folder in {posixpath.dirname(path) for path in paths}:
            self._remove_empty(folder)

    def _remove_empty(self, folder: str) -> None:
        """Remove a directory and its parents as long as they are empty."""
        while folder:
            try:
                os.rmdir(folder, dir_fd=self._fd)
            except OSError:  # it has files of other entries, or is already gone
                return
            self._made.discard(folder)
            folder = posixpath.dirname(folder)

    def _make_parents(self, folder: str) -> None:
        if folder in self._made:
            return
        self._make_parents(posixpath.dirname(folder))
        os.mkdir(folder, 0o755, dir_fd=self._fd)
        os.chmod(folder, 0o755, dir_fd=self._fd)  # whatever the umask is
        self._made.add(folder)


def _state(status: os.stat_result) -> tuple[int, ...]:
    # ctime is compared, too, because the owner can set mtime back.
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink, status.st_uid)


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
    try:
        try:
            is_locked = files.wait_flock(fd, deadline.within(_LOCK_SECONDS), shared=True)
        except OSError as error:  # the file system has no locks, so the tool cannot lock either
            raise TurnedAway(HELD) from error
        if not is_locked:
            raise TurnedAway(HELD)
        yield
    finally:
        os.close(fd)

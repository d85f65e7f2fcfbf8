"""Find the files of entries in a job's tree by name; opens only directories.

The job decides how large the tree is, so depth, number of names and time are bounded.
"""

from __future__ import annotations

import os
import posixpath
import stat

from warmstart.host.deadline import Deadline
from warmstart.host.untrusted import LINK, SPECIAL, UNREADABLE, TurnedAway, open_directory
from warmstart.lean import Callable, Container, Iterable, Iterator, Mapping, NamedTuple, suppress
from warmstart.store.layout import is_plain_path

DEEPEST = 16
# Of all paths together. They are kept in memory, and a manifest (64 MiB, each path twice) could not hold more.
MOST_NAME_BYTES = 64 << 20
MOST_EXAMPLES = 20  # of rejected paths (docs/architecture.md, rule 10: repeated rejections are counted)
MOST_IGNORED_EXAMPLES = 5

TOO_DEEP = "too deep"
ODD_NAME = "its name has control characters, or is too long"
IN_PROGRESS = "lock or temporary file"
NO_ENTRY = "no file of an entry"
TOO_MANY_NAMES = "too many names"
OUT_OF_TIME = "out of time"

_OPAQUE = "trusted.overlay.opaque"
_TIME_CHECK = 256  # names between two checks of the deadline
# What tools leave behind and is nobody's entry.
_IN_PROGRESS = (
    r"(?s:locks?|tmp|tmp\..*|.*\.tmp|.*\.tmp\..*|.*\.(?:lock|part|incomplete|lcs)|\.lockfile|\.staging.*|\.nfs.*|"
    r".*_CxxBuild|.*-[0-9a-f]{64}-atime)"
)


class Tally:
    """Counts rejected paths by reason, and keeps a few examples."""

    def __init__(self, most_examples: int = MOST_EXAMPLES) -> None:
        self.counts: dict[str, int] = {}
        self.examples: list[tuple[str, str]] = []  # path in printable ASCII, reason
        self._most_examples = most_examples

    def add(self, path: str, reason: str) -> None:
        """Count one path, and keep it as an example if there are few so far."""
        self.count(reason)
        if len(self.examples) < self._most_examples:
            self.examples.append((ascii(path)[1:-1][:200], reason))

    def take(self, counts: Mapping[str, int], examples: Iterable[tuple[str, str]]) -> None:
        """Add what was counted elsewhere, with its examples."""
        for reason, count in counts.items():
            if count:
                self.counts[reason] = self.counts.get(reason, 0) + count
        self.examples = [*self.examples, *examples][: self._most_examples]

    def count(self, reason: str) -> None:
        """Count one path without keeping it."""
        self.counts[reason] = self.counts.get(reason, 0) + 1


class Found(NamedTuple):
    """The result of a scan."""

    entries: dict[str, list[str]]  # entry → paths of its files
    seeded: dict[str, dict[str, tuple[int, int]]]  # seeded entry → paths of its files → size, mtime in nanoseconds
    touched: set[str]  # all names that are no directories, and directories that hide what layers below have of them
    rejected: set[str]  # entries that have something that is not taken
    skipped: int  # files of entries in `skip`
    ignored: dict[str, int]  # files that belong to no entry: reason → number of files
    ignored_examples: list[tuple[str, str]]  # at most 5, none of which is a lock or a temporary file
    truncated: str  # why the scan ended early, or ""
    is_empty: bool  # whether there is nothing at all below the tree's top
    hides: bool  # whether an upper layer has whiteouts: the job removed something
    unsettled: set[str]  # entries of which something has changed after `Rules.settled_ns`


class Rules(NamedTuple):
    """What a scan looks for, and its bounds."""

    entry_of: Callable[[str], str | None]
    skip: Container[str]
    seeded: Container[str]  # entries that the job may have changed
    most_names: int
    deadline: Deadline
    upper: bool = False  # the tree is an overlay's upper layer: character devices 0:0 stand for removed files
    settled_ns: int = 0  # by ctime, in nanoseconds since the epoch: what changed later is left out; 0: nothing is


def scan(top_fd: int, mount: str, rules: Rules, tally: Tally) -> Found:
    """Scan a tree and return its entries that are neither in `rules.seeded` nor in `rules.skip`.

    Leaves out an entry if one of its files is rejected. If the scan ends early, also leaves out entries whose
    directory was not scanned completely: all files of an entry `a/b` are below `a/`.

    With `settled_ns` leaves out an entry if one of its files or directories has changed since: its ctime counts, which
    the job cannot set.

    `mount` is the mount id that all directories must have. Raises `OSError` if `top_fd` itself cannot be listed;
    anything else that cannot be read is a rejection in `tally`.
    """
    walk = _Walk(mount, rules, tally)
    walk.into(top_fd, "", 0)
    left_out = walk.rejected | (unsettled := walk.unsettled())
    entries = {
        entry: sorted(files)
        for entry, files in walk.entries.items()
        if entry not in left_out and posixpath.dirname(entry) in walk.seen_whole
    }
    return Found(
        entries=entries,
        seeded=walk.seeded,
        touched=walk.touched,
        rejected=walk.rejected,
        skipped=walk.skipped,
        ignored=walk.ignored.counts,
        ignored_examples=walk.ignored.examples,
        truncated=walk.truncated,
        is_empty=walk.is_empty,
        hides=walk.hides,
        unsettled=unsettled,
    )


class _Walk:
    def __init__(self, mount: str, rules: Rules, tally: Tally) -> None:
        self.entries: dict[str, list[str]] = {}
        self.seeded: dict[str, dict[str, tuple[int, int]]] = {}
        self.touched: set[str] = set()
        self.rejected: set[str] = set()
        self.seen_whole: set[str] = set()
        self.skipped = 0
        self.ignored = Tally(MOST_IGNORED_EXAMPLES)
        self.truncated = ""
        self.is_empty = True
        self.hides = False
        self._young: set[str] = set()  # paths that have changed after `Rules.settled_ns`
        self._mount = mount
        self._rules = rules
        self._names_left = rules.most_names
        self._name_bytes_left = MOST_NAME_BYTES
        self._tally = tally

    def into(self, fd: int, path: str, depth: int) -> None:
        """Scan one directory and everything below it."""
        folders: list[str] = []
        with os.scandir(fd) as items:
            for item in items:
                self.is_empty = False
                there = posixpath.join(path, item.name)
                if self._is_limit_reached(there):
                    return
                self._look_at(item, there, folders)
        for name in sorted(folders):
            self._enter(fd, name, posixpath.join(path, name), depth + 1)
            if self.truncated:
                return
        self.seen_whole.add(path)

    def unsettled(self) -> set[str]:
        """Return the entries of which a file, or a directory that is the entry's alone, has changed lately."""
        found = {entry for path in self._young if (entry := self._rules.entry_of(path))}
        for entry, paths in (*self.entries.items(), *self.seeded.items()) if self._young else ():
            folders = {folder for path in paths for folder in _folders(path, entry)}
            if not folders.isdisjoint(self._young):
                found.add(entry)
        return found

    def _is_young(self, status: os.stat_result) -> bool:
        return 0 < self._rules.settled_ns < status.st_ctime_ns

    def _is_limit_reached(self, path: str) -> bool:
        self._names_left -= 1
        self._name_bytes_left -= len(os.fsencode(path))
        if self._names_left < 0 or self._name_bytes_left < 0:
            self.truncated = TOO_MANY_NAMES
        elif self._names_left % _TIME_CHECK == 0 and self._rules.deadline.expired():
            self.truncated = OUT_OF_TIME
        return bool(self.truncated)

    def _look_at(self, item: os.DirEntry[str], path: str, folders: list[str]) -> None:
        try:
            if item.is_dir(follow_symlinks=False):
                folders.append(item.name)
                return
            self.touched.add(path)
            if self._rules.settled_ns and self._is_young(item.stat(follow_symlinks=False)):
                self._young.add(path)
            if item.is_symlink():
                self._turn_away(path, LINK)
            elif item.is_file(follow_symlinks=False):
                self._add_to_entry(item, path)
            elif self._rules.upper and _is_whiteout(item):
                self.hides = True
            else:
                self._turn_away(path, SPECIAL)
        except OSError:
            self._turn_away(path, UNREADABLE)

    def _enter(self, parent_fd: int, name: str, path: str, depth: int) -> None:
        if depth > DEEPEST:
            self._turn_away(path, TOO_DEEP)
            return
        try:
            fd = open_directory(name, parent_fd, self._mount)
        except TurnedAway as turned:
            self._turn_away(path, turned.reason)
            return
        try:
            if self._rules.upper and _is_opaque(fd):
                self.touched.add(path)
            self.into(fd, path, depth)
            if self._rules.settled_ns and self._is_young(os.fstat(fd)):
                self._young.add(path)
        except OSError:
            self._turn_away(path, UNREADABLE)
        finally:
            os.close(fd)

    def _add_to_entry(self, item: os.DirEntry[str], path: str) -> None:
        entry = self._rules.entry_of(path)
        if entry is None:
            import re  # most epilogs find nothing new

            if any(re.fullmatch(_IN_PROGRESS, part) for part in path.split("/")):
                self.ignored.count(IN_PROGRESS)
            else:
                self.ignored.add(path, NO_ENTRY)
        elif entry in self._rules.seeded and is_plain_path(path):
            status = item.stat(follow_symlinks=False)
            self.seeded.setdefault(entry, {})[path] = (status.st_size, status.st_mtime_ns)
        elif entry in self._rules.skip:
            self.skipped += 1
        elif not is_plain_path(path) or not is_plain_path(entry) or not _holds(entry, path):
            self._turn_away(path, ODD_NAME)
        else:
            self.entries.setdefault(entry, []).append(path)

    def _turn_away(self, path: str, reason: str) -> None:
        self._tally.add(path, reason)
        entry = self._rules.entry_of(path)
        if entry is not None:
            self.rejected.add(entry)


def _folders(path: str, entry: str) -> Iterator[str]:
    """Yield the directories of a file that are its entry's alone."""
    folder = posixpath.dirname(path)
    while folder == entry or folder.startswith(f"{entry}/"):
        yield folder
        folder = posixpath.dirname(folder)


def _holds(entry: str, path: str) -> bool:
    folder = posixpath.dirname(entry)
    return path.startswith(folder + "/" if folder else "")


def _is_opaque(fd: int) -> bool:
    """Return whether a directory of an upper layer hides what the layers below have of it (overlayfs.rst).

    New ones do, too, where these have nothing (ovl_create_upper in Linux).
    """
    with suppress(OSError):
        return os.getxattr(fd, _OPAQUE) == b"y"
    return False


def _is_whiteout(item: os.DirEntry[str]) -> bool:
    # A job cannot make one itself: overlayfs refuses mknod of a character device 0:0.
    status = item.stat(follow_symlinks=False)
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0

"""Find the files of entries in a job's tree by name; opens only directories.

The job decides how large the tree is, so depth, number of names and time are bounded.
"""

from __future__ import annotations

import os
import posixpath
import stat

from warmstart.host.deadline import Deadline
from warmstart.host.untrusted import LINK, SPECIAL, UNREADABLE, TurnedAway, open_directory
from warmstart.lean import Callable, NamedTuple, suppress
from warmstart.store.layout import is_plain_path

DEEPEST = 16
# Of all paths together. They are kept in memory, and a bundle's list of files (32 MiB) could not hold more.
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
    """Counts paths by reason, and keeps a few examples."""

    def __init__(self, most_examples: int = MOST_EXAMPLES) -> None:
        self.counts: dict[str, int] = {}
        self.examples: list[tuple[str, str]] = []  # path in printable ASCII, reason
        self._most_examples = most_examples

    def add(self, path: str, reason: str) -> None:
        """Count one path, and keep it as an example if there are few so far."""
        self.count(reason)
        if len(self.examples) < self._most_examples:
            self.examples.append((ascii(path)[1:-1][:200], reason))

    def count(self, reason: str) -> None:
        """Count one path without keeping it."""
        self.counts[reason] = self.counts.get(reason, 0) + 1


class Found:
    """What there is in a tree, by paths below its top."""

    def __init__(self, *, upper: bool = False) -> None:
        """`upper` as in `Rules`."""
        self.upper = upper
        self.entries: dict[str, list[str]] = {}  # entry → paths of its files
        # All names that are no directories, and directories that hide what layers below have of them.
        self.touched: set[str] = set()
        self.rejected = Tally()
        self.spoilt: set[str] = set()  # entries of which something was rejected
        self.ignored = Tally(MOST_IGNORED_EXAMPLES)  # files that belong to no entry
        self.truncated = ""  # why the scan ended early, or ""
        self.is_empty = True  # whether there is nothing at all
        self.has_whiteouts = False  # of an upper layer: the job removed something
        self.seen_whole: set[str] = set()  # directories of which all was seen

    def is_whole(self, entry: str) -> bool:
        """Return whether all files of an entry were seen, and none was rejected: those of `a/b` are below `a/`."""
        return entry not in self.spoilt and posixpath.dirname(entry) in self.seen_whole

    def reject(self, path: str, reason: str, entry: str | None) -> None:
        """Count a path that is not taken, and with it the entry that it belongs to."""
        self.rejected.add(path, reason)
        if entry is not None:
            self.spoilt.add(entry)


class Rules(NamedTuple):
    """What a scan looks for, and its bounds."""

    entry_of: Callable[[str], str | None]
    most_names: int
    deadline: Deadline
    upper: bool = False  # the tree is an overlay's upper layer: character devices 0:0 stand for removed files


def scan(top_fd: int, mount: str, rules: Rules) -> Found:
    """Return what there is in a tree.

    `mount` is the mount id that all directories must have. Raises `OSError` if `top_fd` itself cannot be listed;
    anything else that cannot be read is a rejection.
    """
    walk = _Walk(mount, rules)
    walk.into(top_fd, "", 0)
    return walk.found


class _Walk:
    def __init__(self, mount: str, rules: Rules) -> None:
        self.found = Found(upper=rules.upper)
        self._mount = mount
        self._rules = rules
        self._names_left = rules.most_names
        self._name_bytes_left = MOST_NAME_BYTES

    def into(self, fd: int, path: str, depth: int) -> None:
        """Scan one directory and everything below it."""
        folders: list[str] = []
        with os.scandir(fd) as items:
            for item in items:
                self.found.is_empty = False
                there = posixpath.join(path, item.name)
                if self._is_limit_reached(there):
                    return
                self._look_at(item, there, folders)
        for name in sorted(folders):
            self._enter(fd, name, posixpath.join(path, name), depth + 1)
            if self.found.truncated:
                return
        self.found.seen_whole.add(path)

    def _is_limit_reached(self, path: str) -> bool:
        self._names_left -= 1
        self._name_bytes_left -= len(os.fsencode(path))
        if self._names_left < 0 or self._name_bytes_left < 0:
            self.found.truncated = TOO_MANY_NAMES
        elif self._names_left % _TIME_CHECK == 0 and self._rules.deadline.expired():
            self.found.truncated = OUT_OF_TIME
        return bool(self.found.truncated)

    def _look_at(self, item: os.DirEntry[str], path: str, folders: list[str]) -> None:
        # By what the directory says: stat(2) of a file may wait for a FUSE daemon of the job's.
        try:
            if item.is_dir(follow_symlinks=False):
                folders.append(item.name)
                return
            self.found.touched.add(path)
            if item.is_symlink():
                self._turn_away(path, LINK)
            elif item.is_file(follow_symlinks=False):
                self._add(path)
            elif self._rules.upper and _is_whiteout(item):
                self.found.has_whiteouts = True
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
                self.found.touched.add(path)
            self.into(fd, path, depth)
        except OSError:
            self._turn_away(path, UNREADABLE)
        finally:
            os.close(fd)

    def _add(self, path: str) -> None:
        entry = self._rules.entry_of(path)
        if entry is None:
            import re  # most epilogs find nothing new

            if any(re.fullmatch(_IN_PROGRESS, part) for part in path.split("/")):
                self.found.ignored.count(IN_PROGRESS)
            else:
                self.found.ignored.add(path, NO_ENTRY)
        elif not is_plain_path(path) or not is_plain_path(entry) or not _holds(entry, path):
            self.found.reject(path, ODD_NAME, entry)
        else:
            self.found.entries.setdefault(entry, []).append(path)

    def _turn_away(self, path: str, reason: str) -> None:
        self.found.reject(path, reason, self._rules.entry_of(path))


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

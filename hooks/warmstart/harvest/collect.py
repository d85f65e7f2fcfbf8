"""Harvest, first half: what is new in a job's cache, copied by root into its stage (design, rule 3).

The job's processes may be alive: every byte and name of the tree is theirs. An entry is taken whole or not at
all; what is turned away is counted by reason. A growing file is cut at the size that it had: the check after
the copy then finds it changed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

from warmstart.harvest.scan import OUT_OF_TIME, Found, Rules, Tally, scan
from warmstart.host.deadline import Deadline
from warmstart.host.files import mount_id
from warmstart.host.untrusted import GONE, Tree, TurnedAway, open_branch
from warmstart.store.manifest import LARGEST, Entries, File
from warmstart.store.shared_lock import tool_lock
from warmstart.store.stage import OutOfTime, Stage

if TYPE_CHECKING:
    from warmstart.seed.overlay import FrozenView

TOO_LARGE = "larger than the limit"
MOST_ENTRIES = "more entries than the limit"
MOST_BYTES = "more bytes than the limit"
MOST_NAMES = "more than a manifest can name"
STAGE_FULL = "the stage is full"

NAMES_PER_ENTRY = 10  # names to look at, for each entry of the limit: locks and temporary files are among them


# Of a manifest's JSON. A longer one is refused by readers, and no process of the store's owner takes it either: the
# bundle would come back from the spool for ever.
LONGEST_DRAFT = LARGEST - (1 << 20)
_PER_FILE = 180  # bytes of JSON beside the path, at most; of an entry beside its name less


class HarvestLimits(NamedTuple):
    """How much one harvest of one profile may take."""

    max_size: int  # bytes, as the files' sizes say
    max_entries: int
    deadline: Deadline


class Collected(NamedTuple):
    """What lies in the stage now, and what does not."""

    entries: Entries
    size: int  # bytes of all files
    skipped: int  # files of entries that were in `skip`
    ignored: int  # files that are no part of an entry
    rejected: dict[str, int]  # reason → how many
    examples: list[tuple[str, str]]  # at most 20 of (path in printable ASCII, reason)
    truncated: str  # why there may be more than this, or ""


def collect(
    base_fd: int,
    path: str,
    *,
    owner: int,
    entry_of: Callable[[str], str | None],
    skip: Collection[str],
    stage: Stage,
    limits: HarvestLimits,
    lock: str = "",
) -> Collected:
    """Copy the entries of a profile's directory into the stage.

    `base_fd` is a directory that only root can change (the run's own); `path` leads from there through what
    is the job's (`cache/numba`), and all of it has to be on the base's mount: a job can mount a FUSE file
    system on any directory of its own. `entry_of` maps a file's path below the profile's directory (any name,
    surrogates for what is not UTF-8) to its entry, whose files all lie in the directory that its name begins
    with; None for what is never harvested. Entries in `skip` were seeded or are published already. Only files
    of uid `owner` are taken; `lock` is what a tool appends to their names for its lock files. A directory that
    is not there is an empty one; `OSError` is the stage's own.
    """
    tally = Tally()
    mount = mount_id(base_fd)
    try:
        top_fd = open_branch(path, base_fd, mount)
    except TurnedAway as turned:
        if turned.reason != GONE:
            tally.add(path, turned.reason)
        return Collected({}, 0, 0, 0, tally.counts, tally.examples, "")
    try:
        rules = Rules(entry_of, skip, limits.max_entries * NAMES_PER_ENTRY, limits.deadline)
        found = scan(top_fd, mount, rules, tally)
        return _copied(found, Tree(top_fd, mount, owner), stage, limits, tally, lock)
    finally:
        os.close(top_fd)


def collect_view(
    view: FrozenView,
    *,
    owner: int,
    entry_of: Callable[[str], str | None],
    skip: Collection[str],
    stage: Stage,
    limits: HarvestLimits,
) -> Collected:
    """Do the same for a profile that was seeded by an overlay: names from its upper layer, content from the view.

    The upper has what the job made or changed, so this costs what is new and not what was seeded. The rest is as in
    `collect`: an entry that was not seeded has no file but in the upper, since all that is not to be seen is masked.
    """
    tally = Tally()
    rules = Rules(entry_of, skip, limits.max_entries * NAMES_PER_ENTRY, limits.deadline, whiteouts=True)
    found = scan(view.upper, mount_id(view.upper), rules, tally)
    return _copied(found, Tree(view.merged, mount_id(view.merged), owner), stage, limits, tally)


def _copied(  # noqa: PLR0917 - what copying takes
    found: Found, tree: Tree, stage: Stage, limits: HarvestLimits, tally: Tally, lock: str = ""
) -> Collected:
    try:
        copy = _Copy(tree, stage, limits, lock)
        truncated = copy.all(found.entries, tally)
    finally:
        tree.close()
    return Collected(
        *(copy.entries, copy.size, found.skipped, found.ignored),
        *(tally.counts, tally.examples, found.truncated or truncated),
    )


class _Spoilt(Exception):
    """One file of an entry can't be taken: the entry is left out."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


class _Enough(Exception):
    """Nothing more can be taken."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Copy:
    def __init__(self, tree: Tree, stage: Stage, limits: HarvestLimits, lock: str) -> None:
        self.entries: Entries = {}
        self.size = 0
        self._draft = 0  # bytes of JSON, at most
        self._tree = tree
        self._stage = stage
        self._limits = limits
        self._lock = lock

    def all(self, entries: dict[str, list[str]], tally: Tally) -> str:
        """Take what can be taken of these entries; return why it ended early, or ""."""
        try:
            for entry in sorted(entries):
                self._one(entry, entries[entry], tally)
        except _Enough as enough:
            return enough.reason
        return ""

    def _one(self, entry: str, paths: list[str], tally: Tally) -> None:
        try:
            self._whole(entry, paths)
        except _Spoilt as spoilt:
            tally.add(spoilt.path, spoilt.reason)

    def _whole(self, entry: str, paths: list[str]) -> None:
        """Take all files of an entry, or none."""
        if len(self.entries) >= self._limits.max_entries:
            raise _Enough(MOST_ENTRIES)
        draft = sum(2 * len(name) + _PER_FILE for name in (entry, *paths))  # JSON escapes `"`
        if self._draft + draft > LONGEST_DRAFT:
            raise _Enough(MOST_NAMES)
        taken: dict[str, File] = {}
        size = 0
        try:
            for path in paths:
                taken[path] = self._file(path, size)
                size += taken[path].size
        except BaseException:
            self._stage.discard(list(taken))
            raise
        self.entries[entry] = taken
        self.size += size
        self._draft += draft

    def _file(self, path: str, entry_size: int) -> File:
        """Take one file of an entry of which `entry_size` bytes are taken already."""
        try:
            with tool_lock(self._tree, self._lock and path + self._lock, self._limits.deadline):
                source = self._tree.open_file(path)
                try:
                    self._check_size(path, entry_size + os.fstat(source).st_size)
                    return self._stage.take(source, path, self._limits.deadline)
                finally:
                    os.close(source)
        except TurnedAway as turned:
            raise _Spoilt(path, turned.reason) from None
        except OutOfTime:
            raise _Enough(OUT_OF_TIME) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _Enough(STAGE_FULL) from None
            raise

    def _check_size(self, path: str, entry_size: int) -> None:
        if entry_size > self._limits.max_size:
            raise _Spoilt(path, TOO_LARGE)
        if self.size + entry_size > self._limits.max_size:
            raise _Enough(MOST_BYTES)

"""Bundles: their files, and what publishers, readers and maintenance do with them and the listing.

A bundle is a squashfs and a list of its entries' files, both named by the hash of the squashfs: the same name is the
same bytes, whoever put it. It lies in place before a generation of the listing names it, and is removed when none has
named it for three days. Runs as the store's owner; root calls through `client`.
"""

from __future__ import annotations

import os
import time

from warmstart.caches.store import generations, merge, quota
from warmstart.caches.store.layout import (
    BUNDLE,
    DOUBTED,
    FACTS,
    FILES,
    LATEST_NS,
    LISTING,
    MOST_OF_FILES,
    SEAL,
    Damaged,
    Entries,
    File,
    Namespace,
    is_bundle,
    is_sha256,
    make_namespace,
    read_owned,
    sealed,
    unsealed,
)
from warmstart.caches.store.listing import HarvestTooLarge, Listing, Row, check_user
from warmstart.caches.store.merge import Change, Removal
from warmstart.errors import StoreError
from warmstart.host import wire
from warmstart.host.copying import ReadFailed, copy_hashed
from warmstart.host.files import (
    DiskFailed,
    changed,
    closing,
    open_regular,
    opened_dir,
    touch,
    unlink_if_there,
    weakness,
)
from warmstart.lean import NamedTuple, dumps, suppress
from warmstart.store.layout import is_plain_path, store_errors

FORMAT = 1
MOST_NAMESPACES = 1000  # of a scope and profile, with which a job's own name of its caches adds no other
LEFT_S = 86_400.0  # longer than any publication takes
ORPHAN_S = 3 * LEFT_S  # longer than what nodes have handed in waits
MOST_OF_FACTS = 64 << 10
_SWEPT = ".swept-"  # before the name of a bundle's file that is about to go


class BundleDamaged(StoreError):
    """A bundle is not what its publisher wrote."""

    code = "bundle-damaged"
    template = "bundle {bundle}: {problem}"
    hint = "maintenance takes it out of its listing; check the store's disks for errors"


class BundleGone(StoreError):
    """A bundle that a listing names is missing: it was removed or replaced meanwhile."""

    code = "bundle-gone"
    template = "bundle {bundle} is not in the store any more"
    hint = "ignore it if it happens once; else check whether something besides warmstart removes files of the store"


class Draft(NamedTuple):
    """What a publisher knows of a bundle, and of what is to leave the listing with it."""

    user: str
    uid: int
    job: int
    entries: Entries
    changed: list[str] = []  # noqa: RUF012 - never mutated, like the rest; as in `Change`
    fresh: bool = False  # the job asked to start cold: all that it made takes the place of what is there
    removal: Removal = Removal()
    facts: dict[str, str] = {}  # noqa: RUF012 - of which the namespace is a hash; `cache` is the job's cache=NAME
    at: int = 0  # when it was made, in seconds since the epoch; 0: now

    def change(self, row: Row | None) -> Change:
        """Return what becomes of a listing with it; `row` is its bundle's, if it has one."""
        return Change(row, [*self.entries] if self.fresh else self.changed, self.removal)


class Published(NamedTuple):
    """What became of a publication."""

    sha256: str = ""  # of the bundle; "" if nothing of it was needed any more
    size: int = 0  # of the squashfs file, bytes
    number: int = 0  # of the generation that was linked; 0: none was


def known(where: Namespace, user: str, uid: int, most: int, fresh: bool) -> list[str]:
    """Return the entries that need not be harvested: readers have them. A `fresh` job replaces entries, so none are.

    `most` is the scope's quota in bytes, 0 for none. Raises `QuotaExceeded` if it is used up, `HarvestTooLarge` if the
    user's names in the namespace are.
    """
    listing = generations.read(where, is_writer=True)  # else nobody publishes where the only one is damaged
    with store_errors("look at a quota", where.path), suppress(FileNotFoundError):
        quota.add(where.store, where.scope, 0, most)
    check_user(listing, user, uid)
    return [] if fresh else sorted(entry for names in listing.names for entry in names)


def put(where: Namespace, writer: str, fd: int, draft: Draft, most: int) -> Row:
    """Put the squashfs of the inherited descriptor `fd` in place; return its row. No listing names it yet.

    `writer` (node and run) is part of the names of temporary files; `most` is the scope's quota in bytes, 0 for none.
    Raises `QuotaExceeded`, `HarvestTooLarge`, `StoreFull` or `StoreFailed`.
    """
    from warmstart.store import atomic  # not needed to read

    files = _encoded(draft.entries)
    if len(files) > MOST_OF_FILES:
        raise HarvestTooLarge(problem=f"the bundle would have {len(files)} bytes of names; {MOST_OF_FILES} are allowed")
    with store_errors("put a bundle", where.path):
        _check_caches(where, draft.facts.get("cache", ""))
        with closing(make_namespace(where)) as dir_fd:
            size, sha256 = copy_hashed(fd)
            at = draft.at or int(time.time())
            row = Row(sha256, size, len(draft.entries), draft.user, draft.uid, draft.job, at)
            if _in_place(dir_fd, row):
                return row
            quota.add(where.store, where.scope, size + len(files), most)
            atomic.put(dir_fd, writer, sha256 + FILES, files)  # who was first has put the same
            with atomic.temp_file(dir_fd, writer) as (temp, out):
                if copy_hashed(fd, out) != (size, sha256):
                    raise Damaged("it changes while it is copied")
                atomic.publish(dir_fd, temp, out, sha256 + BUNDLE)
            if draft.facts and not os.access(FACTS, os.F_OK, dir_fd=dir_fd):
                atomic.put(dir_fd, writer, FACTS, dumps(draft.facts).encode())
    return row


def publish(  # noqa: PLR0917 - as of `put`, and what it takes the place of
    where: Namespace, writer: str, fd: int | None, draft: Draft, most: int, before: list[Row] | None = None
) -> Published:
    """Publish a job's bundle, if it has one, and what it removed; readers see all of it at once. Errors as of `put`.

    A bundle that was made of others takes their place if their rows are as `before`.
    """
    row = None
    if fd is None:
        with store_errors("make a namespace", where.path):
            os.close(make_namespace(where))
    else:
        row = put(where, writer, fd, draft, most)
    files_of = FilesOf(where, {row.sha256: draft.entries} if row else {})

    def merged(old: Listing) -> Listing | None:
        if row and before is not None:
            return merge.compacted(old, before, row, draft.entries)
        return merge.added(old, draft.change(row), files_of)

    listing = generations.change(where, writer, merged)
    if listing is None:
        return Published()
    if row is None or all(listed.sha256 != row.sha256 for listed in listing.rows):
        return Published(number=listing.number)
    return Published(row.sha256, row.size, listing.number)


class FilesOf:
    """The files of bundles' entries, by hash; reads each list once. None if it is gone or damaged."""

    def __init__(self, where: Namespace, known: dict[str, Entries] | None = None) -> None:
        self._where = where
        self._known: dict[str, Entries | None] = {**(known or {})}

    def __call__(self, sha256: str) -> Entries | None:
        """Return the files of one."""
        if sha256 not in self._known:
            self._known[sha256] = None
            with suppress(FileNotFoundError, Damaged), opened_dir(self._where.path) as dir_fd:
                self._known[sha256] = _entries(dir_fd, sha256)
        return self._known[sha256]


def facts(where: Namespace) -> dict[str, str]:
    """Return the facts of a namespace, for people; {} if they are not known, or damaged."""
    with (
        store_errors("read a namespace's facts", where.path),
        suppress(FileNotFoundError, ValueError),
        opened_dir(where.path) as fd,
    ):
        known: dict[str, str] = wire.decode(dict[str, str], wire.parse(read_owned(FACTS, MOST_OF_FACTS, fd)))
        return known
    return {}


def entries(where: Namespace, sha256: str) -> Entries:
    """Return a bundle's entries with their files; raises `BundleGone` or `BundleDamaged`."""
    if not is_sha256(sha256):
        raise BundleGone(bundle=sha256)
    with store_errors("read a bundle's files", where.path):
        try:
            with opened_dir(where.path) as dir_fd:
                return _entries(dir_fd, sha256)
        except FileNotFoundError:
            raise BundleGone(bundle=sha256) from None
        except Damaged as damaged:
            raise BundleDamaged(bundle=sha256, problem=damaged.strerror) from damaged


def fetch(where: Namespace, sha256: str, size: int, fd: int) -> Entries:
    """Copy a bundle into the inherited descriptor `fd`; return its entries with their files.

    What `fd` has already is kept: an earlier fetch of the same bundle left it. All bytes are hashed. If they are not as
    named, it raises `BundleDamaged`, and the content of `fd` is useless. Also raises `BundleGone`, and `DiskFailed` if
    the node's disk fails. Of a bundle that is damaged or gone it leaves a note: maintenance looks at that one first.
    """
    try:
        return _fetch(where, sha256, size, fd)
    except (BundleDamaged, BundleGone):
        with suppress(OSError), opened_dir(where.path) as dir_fd:
            touch(sha256 + DOUBTED, dir_fd)
        raise


def _fetch(where: Namespace, sha256: str, size: int, fd: int) -> Entries:
    files = entries(where, sha256)
    with store_errors("fetch a bundle", where.path):
        try:
            with opened_dir(where.path) as dir_fd, closing(open_regular(sha256 + BUNDLE, dir_fd)) as source:
                if weak := weakness(os.fstat(source), (0, os.geteuid())):
                    raise BundleDamaged(bundle=sha256, problem=weak)
                _copy(source, sha256, size, fd)
        except FileNotFoundError:
            raise BundleGone(bundle=sha256) from None
    return files


def _copy(source: int, sha256: str, size: int, fd: int) -> None:
    try:
        copied = copy_hashed(source, fd, most=size + 1, have=os.lseek(fd, 0, os.SEEK_END))
    except ReadFailed:
        raise
    except OSError as error:
        raise DiskFailed(what=f"bundle {sha256}", problem=error.strerror) from error
    if copied != (size, sha256):
        raise BundleDamaged(bundle=sha256, problem="its bytes are not those of its name")


def sweep(where: Namespace, now: float) -> list[str]:
    """Remove old generations, files of bundles that none has named for long, and what writers left; return the names.

    A publisher may put the same bundle meanwhile, which then has a new time. So its files get other names before they
    are looked at: what is new by then gets its name back, and who comes later does not find it, and puts it again.
    """
    from warmstart.store.atomic import TEMP_PREFIX

    swept = generations.clean(where, now)
    with store_errors("sweep a namespace", where.path), opened_dir(where.path) as fd:
        there, named = os.listdir(fd), generations.named_bundles(where)
        for name in there:
            age = now - changed(name, fd)
            if name.startswith(TEMP_PREFIX) and age > LEFT_S and unlink_if_there(name, fd):
                swept.append(name)
            elif is_bundle(name) and age > ORPHAN_S and name.partition(".")[0] not in named:
                with suppress(FileNotFoundError):
                    os.rename(name, _SWEPT + name, src_dir_fd=fd, dst_dir_fd=fd)
        for name in (name for name in os.listdir(fd) if name.startswith(_SWEPT)):
            was = name.removeprefix(_SWEPT)
            with suppress(FileNotFoundError, FileExistsError):
                if os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime < now - ORPHAN_S:
                    swept.append(was)
                else:
                    os.link(name, was, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
            unlink_if_there(name, fd)
    return swept


def remove_empty(where: Namespace, before: float, forgotten: float) -> bool:
    """Remove a namespace without rows in which nothing has changed since then; return whether it was removed.

    One that hides entries of wider scopes goes when nothing has changed since `forgotten`, which is earlier. A
    publisher that comes at the same moment keeps the directories, or finds them gone and fails: its run waits.
    """
    with store_errors("remove an empty namespace", where.path), suppress(FileNotFoundError):
        with opened_dir(where.path) as fd:
            names = os.listdir(fd)
            old = os.listdir(f"{where.path}/{LISTING}") if LISTING in names else []  # before the look at the newest
            last, listing = max(changed(name, fd) for name in (".", *names)), generations.read(where, is_writer=True)
            if last >= before or listing.rows or (listing.hide and last >= forgotten) or {*names} - {LISTING, FACTS}:
                return False
            for name in (FACTS, *(f"{LISTING}/{name}" for name in old)):
                unlink_if_there(name, fd)
        with suppress(OSError):  # a publisher came, or other namespaces are there
            for path in (f"{where.path}/{LISTING}", where.path, os.path.dirname(where.path)):
                if os.path.exists(path):
                    os.rmdir(path)
        return not os.path.exists(where.path)
    return False


def _in_place(dir_fd: int, row: Row) -> bool:
    """Return whether both files of a bundle lie in place, now with a new time, so that no sweep takes them for old.

    What is damaged in a way that a look shows is removed.
    """
    squashfs, files = row.sha256 + BUNDLE, row.sha256 + FILES
    try:
        if os.stat(squashfs, dir_fd=dir_fd, follow_symlinks=False).st_size != row.size:
            unlink_if_there(squashfs, dir_fd)
            return False
        _entries(dir_fd, row.sha256)
        for name in (squashfs, files):
            os.utime(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except Damaged:
        unlink_if_there(files, dir_fd)
        return False
    return True


def _check_caches(where: Namespace, cache: str) -> None:
    if cache and not os.path.exists(where.path):
        with suppress(FileNotFoundError):
            if (number := len(os.listdir(os.path.dirname(where.path)))) >= MOST_NAMESPACES:
                there = f"{where.scope} has {number} of {where.profile} already"
                raise HarvestTooLarge(problem=f"nothing is kept of cache={cache}, which is new: {there}")


def _encoded(entries: Entries) -> bytes:
    """Return a list of files: a file's name begins with `/` in place of its entry's name."""
    shorter = {
        entry: {"/" + path[len(entry) :] if path.startswith(entry) else path: file for path, file in files.items()}
        for entry, files in entries.items()
    }
    return sealed(dumps({"format": FORMAT, "entries": shorter}, separators=(",", ":")).encode())


def _entries(dir_fd: int, sha256: str) -> Entries:
    """Read a list of files. Raises `OSError`, and `Damaged` also for a format that this release does not know."""
    return _decoded(unsealed(read_owned(sha256 + FILES, MOST_OF_FILES + SEAL, dir_fd)))


def _decoded(text: bytes) -> Entries:
    try:
        raw = wire.parse(text)
        if raw["format"] != FORMAT:
            raise Damaged(f"its list of files is of format {raw['format']!a:.20}, known is {FORMAT}")
        return checked_entries(
            {
                entry: {entry + name[1:] if name.startswith("/") else name: File(*file) for name, file in files.items()}
                for entry, files in raw["entries"].items()
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"not a list of files: {error!r:.200}") from error


def checked_entries(entries: Entries) -> Entries:
    """Return a bundle's entries if root can use them; raises `ValueError` or `TypeError`."""
    seen: set[str] = set()
    for entry, files in entries.items():
        if not files or not all(map(is_plain_path, (entry, *files))):
            raise ValueError("invalid names of files")
        if not seen.isdisjoint(files):
            raise ValueError("two entries share a file")
        # These numbers reach system calls in every job's prolog: `utimensat` refuses the year 10^13.
        for size, sha256, mtime_ns in files.values():
            if not (type(size) is int and type(mtime_ns) is int and size >= 0 and 0 <= mtime_ns <= LATEST_NS):
                raise ValueError("invalid size or time of a file")
            if not is_sha256(sha256):
                raise ValueError("invalid hash of a file")
        seen.update(files)
    return entries

"""What maintenance and `warmstart cache` see of the caches in the store, and decide. Runs as the store's owner.

A bundle's last use is the mtime of its `.sqsh`: nodes tell it each half hour (`record_uses`).
"""

from __future__ import annotations

import os
import time

from warmstart.caches.store import bundles, generations, merge
from warmstart.caches.store.bundles import BundleDamaged, BundleGone
from warmstart.caches.store.layout import (
    BUNDLE,
    CACHES,
    DOUBTED,
    FILES,
    MOST_ENTRIES,
    MOST_OF_FILES,
    Namespace,
    is_sha256,
)
from warmstart.caches.store.listing import MOST_OF_USER, Listing, Row
from warmstart.caches.store.quota import quota
from warmstart.errors import StoreError
from warmstart.host.files import changed, closing, ensure_dir, is_temporary, opened_dir, replace_file, unlink_if_there
from warmstart.lean import Callable, Iterable, Mapping, NamedTuple, suppress
from warmstart.policy.keys import Maintenance
from warmstart.profiles.contract import is_whole
from warmstart.store import barrier
from warmstart.store.atomic import TEMP_PREFIX
from warmstart.store.layout import store_errors
from warmstart.store.locks import HeldLock, try_lock

HOUR, DAY = 3600.0, 86400.0
IN_USE_SECONDS = 3 * HOUR  # a whole used within it may be mounted by a job: nodes tell each half hour
HIGH, LOW = 0.9, 0.8  # fractions of a bound: above HIGH, maintenance removes down to LOW
DAYS = 30  # to check all bundles once
BOARD_SECONDS = 7 * DAY  # while a job runs, the node that began a topic tells each half hour
MOST_SWEPT = 5_000  # of very many; the time for it is bounded, too
MOST_MERGED = 15  # bundles: as many layers as a job is shown
MOST_MERGED_BYTES = 512 << 20  # of a compacted bundle, which comes in one prolog's time
UNUSED = "unused for longer than maintenance.keep"
OVER = "its scope is close to its quota (maintenance.per_user)"
OVER_NAMES = "its user's names in the namespace are close to their bound"

_LOCKS, _MAKING = ".locks", "making."  # in CACHES
_MAINTAINED = "maintained"  # in CACHES; its mtime is when maintenance last succeeded
_held: list[HeldLock] = []  # keeps locks until this process ends


class Bundle(NamedTuple):
    """A bundle that readers are given, as maintenance and `warmstart cache list` see it."""

    scope: str
    profile: str
    namespace: str
    bundle: str  # its SHA-256
    size: int  # of the squashfs file, bytes
    entries: int  # that readers take from it
    user: str  # name of the user whose job made it
    uid: int
    job: int
    at: float  # when it was published
    used: float  # last fetch, or last use of a node's copy; exact to a day
    names: int  # characters of its entries' names in the listing
    is_doubted: bool = False  # whether a reader has found it damaged, or gone

    def where(self, store: str) -> Namespace:
        """Return its namespace."""
        return Namespace(store, self.scope, self.profile, self.namespace)


class Merger(NamedTuple):
    """Bundles of one user to make one of, topmost first, and what readers take of each."""

    rows: list[Row]
    names: list[list[str]]


class What(NamedTuple):
    """What readers are to be given no more."""

    bundles: list[str] = []  # noqa: RUF012 - SHA-256; never mutated, like the rest
    users: list[str] = []  # noqa: RUF012 - all bundles of theirs
    entries: list[str] = []  # noqa: RUF012 - of any bundle
    before: float = 0.0  # all that was published before


class Out(NamedTuple):
    """What readers are given no more."""

    rows: list[Row]
    entries: int  # of bundles that stay


def lock(store: str, name: str = "maintenance") -> bool:
    """Take a lock of the store's until this process ends; return False if another host has it."""
    with store_errors("lock the store's maintenance"):
        ensure_dir(f"{store}/{CACHES}", 0o700)
        held = try_lock(f"{store}/{CACHES}/{_LOCKS}", name)
        if held is not None:
            _held.append(held)
        return held is not None


def lock_making(where: Namespace) -> bool:
    """Take the lock of who makes what a namespace is to have, until this process ends; return False if it is held."""
    return lock(where.store, f"{_MAKING}{where.scope}.{where.name}")


def record_maintained(store: str) -> None:
    """Record the time of a maintenance run that got to its end."""
    with store_errors("record the store's maintenance"), opened_dir(f"{store}/{CACHES}") as fd:
        replace_file(fd, _MAINTAINED, b"", 0o600)


def last_maintained(store: str) -> float | None:
    """Return how many seconds ago the last maintenance run of the store succeeded, None if none ever did."""
    try:
        return time.time() - os.stat(f"{store}/{CACHES}/{_MAINTAINED}", follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None


def sweep_top(store: str, now: float) -> list[str]:
    """Remove what is old outside of the namespaces: temporary files, locks of makers, boards; return the paths.

    At most `MOST_SWEPT` of each, the next time more.
    """
    swept = []
    for folder, prefix, age in (
        (CACHES, TEMP_PREFIX, DAY), (f"{CACHES}/{_LOCKS}", _MAKING, DAY), (barrier.DIRECTORY, "", BOARD_SECONDS)
    ):  # fmt: skip
        with store_errors("sweep the store"), suppress(FileNotFoundError), opened_dir(f"{store}/{folder}") as fd:
            names = [name for name in sorted(os.listdir(fd)) if name.startswith(prefix) or is_temporary(name)]
            old = [name for name in names if changed(name, fd) < now - age]
            swept += [f"{folder}/{name}" for name in old[:MOST_SWEPT] if _removed(name, fd)]
    return swept


def _removed(name: str, fd: int) -> bool:
    try:
        return unlink_if_there(name, fd)
    except IsADirectoryError:  # the board of a run whose head node crashed, or that got no image
        return barrier.remove(name, fd)


def survey(where: Namespace) -> list[Bundle]:
    """Return the bundles that readers of a namespace are given, topmost first."""
    listing = generations.read(where)
    with store_errors("survey a namespace", where.path):
        return [
            Bundle(
                *where[1:], row.sha256, row.size, row.number, row.user, row.uid, row.job, row.at,
                used=_used(where, row), names=sum(map(len, (*names, *lost))),
                is_doubted=os.path.lexists(f"{where.path}/{row.sha256}{DOUBTED}"),
            )
            for row, names, lost in zip(listing.rows, listing.names, listing.lost, strict=True)
        ]  # fmt: skip


def _used(where: Namespace, row: Row) -> float:
    with suppress(FileNotFoundError):
        return os.stat(f"{where.path}/{row.sha256}{BUNDLE}", follow_symlinks=False).st_mtime
    return 0.0  # its file is lost


def record_uses(uses: list[tuple[Namespace, str, float]]) -> int:
    """Record when bundles were last used, at most once a day (of a whole, an hour); return how many were updated.

    A use is a namespace, a bundle's hash, and seconds since the epoch. One that fails keeps no other: garbage
    collection would take what is in use. The first such error is raised.
    """
    recorded = 0
    failure = None
    for where, sha256, at in uses:
        path, least = f"{where.path}/{sha256}{BUNDLE}", HOUR if is_whole(where.profile) else DAY
        try:
            with store_errors("record a use"), suppress(FileNotFoundError):
                if is_sha256(sha256) and os.stat(path, follow_symlinks=False).st_mtime < at - least:
                    os.utime(path, (at, at), follow_symlinks=False)
                    recorded += 1
        except StoreError as error:
            failure = failure or error
    if failure:
        raise failure
    return recorded


def plan(where: Namespace, fewest: int) -> list[Merger]:
    """Return which bundles of a namespace to make one of."""
    listing, lengths = generations.read(where), dict[str, int]()
    with store_errors("plan a compaction", where.path):
        for row in listing.rows:
            with suppress(FileNotFoundError):
                lengths[row.sha256] = os.stat(f"{where.path}/{row.sha256}{FILES}", follow_symlinks=False).st_size
    return mergers(listing, fewest, lengths)


def mergers(listing: Listing, fewest: int, lengths: Mapping[str, int]) -> list[Merger]:
    """Return which rows to make one of: per user the smallest, at least `fewest`, as many as fit into one bundle.

    `lengths` are those of the lists of their files. Bundles of different users are never merged, because an
    administrator may remove a user's.
    """
    users: dict[tuple[str, int], list[int]] = {}
    for number, row in enumerate(listing.rows):
        users.setdefault((row.user, row.uid), []).append(number)
    plans = []
    for numbers in users.values():
        chosen, size, count, length = [], 0, 0, 0
        for number in sorted(numbers, key=lambda number: listing.rows[number].size)[:MOST_MERGED]:
            row = listing.rows[number]
            size, count, length = size + row.size, count + row.number, length + lengths.get(row.sha256, 0)
            if size > MOST_MERGED_BYTES or count > MOST_ENTRIES or length > MOST_OF_FILES:
                break
            chosen.append(number)
        if len(chosen) >= fewest:
            chosen.sort()
            plans.append(Merger([listing.rows[n] for n in chosen], [listing.names[n] for n in chosen]))
    return plans


def expired(candidates: Iterable[Bundle], policy: Maintenance, now: float) -> dict[Bundle, str]:
    """Return the bundles to remove, with why: all unused for `policy.keep`, and the least recently used beyond a bound.

    Bounds are the quota of a scope, and the names that one user may have in a namespace.
    """
    going: dict[Bundle, str] = {}
    scopes: dict[str, list[Bundle]] = {}
    users: dict[tuple[str, ...], list[Bundle]] = {}
    for bundle in candidates:
        if bundle.used < now - policy.keep:
            going[bundle] = UNUSED
        else:
            users.setdefault((bundle.scope, bundle.profile, bundle.namespace, bundle.user), []).append(bundle)
            scopes.setdefault(bundle.scope, []).append(bundle)
    for used in users.values():
        going.update(dict.fromkeys(_beyond(used, MOST_OF_USER, lambda bundle: bundle.names, now), OVER_NAMES))
    for scope, used in scopes.items():
        staying = [bundle for bundle in used if bundle not in going]
        most = quota(scope, policy)
        going.update(dict.fromkeys(_beyond(staying, most, lambda bundle: bundle.size, now), OVER))
    return going


def _beyond(used: list[Bundle], most: int, size_of: Callable[[Bundle], int], now: float) -> list[Bundle]:
    """Return the least recently used bundles to remove, so that new ones fit within a bound.

    The most recently used bundle stays unless all together exceed it. A whole that a job may be reading stays.
    """
    size = sum(map(size_of, used))
    excess = size - LOW * most if size > HIGH * most else 0
    going = []
    by_use = sorted(used, key=lambda bundle: (bundle.used, bundle.bundle))
    for bundle in by_use if size > most else by_use[:-1]:
        if excess <= 0:
            break
        if is_whole(bundle.profile) and bundle.used > now - IN_USE_SECONDS:
            continue
        going.append(bundle)
        excess -= size_of(bundle)
    return going


def is_due(bundle: Bundle, now: float) -> bool:
    """Return whether a bundle is checked today: if readers doubt it, and a thirtieth of all, by hash and date."""
    return bundle.is_doubted or int(bundle.bundle[:8], 16) % DAYS == int(now // DAY) % DAYS


def damage(where: Namespace, sha256: str, size: int) -> str:
    """Read a bundle of `size` bytes; return what is wrong with it, or "": then nobody doubts it any more."""
    with closing(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) as nowhere:
        try:
            bundles.fetch(where, sha256, size, nowhere)
        except (BundleDamaged, BundleGone) as error:
            return str(error.fields.get("problem", "its files are gone"))
    with store_errors("check a bundle", where.path), opened_dir(where.path) as fd:
        unlink_if_there(sha256 + DOUBTED, fd)
    return ""


def take_out(where: Namespace, writer: str, what: What) -> Out:
    """Take bundles and entries out of a listing, and remove the bundles' files: who is about to fetch one goes without.

    What they covered does not come back.
    """
    files_of, out = bundles.FilesOf(where), Out([], 0)

    def leaves(row: Row) -> bool:
        return row.sha256 in what.bundles or row.user in what.users or row.at < what.before

    def merged(old: Listing) -> Listing | None:
        nonlocal out
        listing = merge.without(old, leaves, what.entries, files_of)
        left = {row.sha256: row.number for row in (listing or old).rows}
        rows = [row for row in old.rows if row.sha256 not in left]
        out = Out(rows, sum(row.number - left[row.sha256] for row in old.rows if row.sha256 in left))
        return listing

    generations.change(where, writer, merged)
    with store_errors("remove bundles", where.path), opened_dir(where.path) as fd:
        for row in out.rows:
            for suffix in (BUNDLE, FILES, DOUBTED):
                unlink_if_there(row.sha256 + suffix, fd)
    return out

"""Survey, garbage collection and removal of bundles for `warmstart maintain --store`. Runs as the store's owner.

One host at a time runs it, under a lock that only saves work: each function leaves the store readable if others work
there at the same time, and if it is killed at any point. A bundle's manifest is removed first, so that no reader sees
half a bundle. An orphaned squashfs is removed by `sweep` once it is older than any publish can take.

Garbage collection removes bundles that were unused for `keep`; in a scope near its quota, the least recently used ones
(docs/threats.md, row 15).
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.errors import StoreError
from warmstart.host.files import (
    changed,
    ensure_dir,
    is_temporary,
    opened_dir,
    replace_file,
    unlink_if_there,
)
from warmstart.lean import Callable, Collection, Iterable, Iterator, NamedTuple, Sequence, suppress
from warmstart.policy.keys import Maintenance
from warmstart.profiles.contract import is_whole
from warmstart.store import board, bundles, index
from warmstart.store.atomic import TEMP_PREFIX
from warmstart.store.index import Listed
from warmstart.store.layout import (
    ARTIFACTS,
    BUNDLE,
    LOCKS,
    MANIFEST,
    Namespace,
    is_bundle_id,
    is_component,
    is_user_scope,
    store_errors,
)
from warmstart.store.locks import HeldLock, publish_lock, try_lock
from warmstart.store.manifest import MOST_ENTRIES, MOST_PER_BUNDLE, MOST_PER_USER

HOUR, DAY = 3600.0, 86400.0
IN_USE_SECONDS = 3 * 3600.0  # a whole used within it may be mounted by a job: nodes tell each half hour
ORPHAN_SECONDS = DAY  # longer than any publish takes
GRACE_SECONDS = HOUR  # longer than any reader uses an index that it has read
BOARD_SECONDS = 7 * DAY  # while a job runs, the node that began a topic tells each half hour
MOST_SWEPT = 5_000  # of very many; the time for it is bounded, too
QUARANTINE = "quarantine"
HIGH, LOW = 0.9, 0.8  # fractions of a scope's quota: above HIGH, maintenance removes down to LOW
UNUSED = "unused for longer than maintenance.keep"
OVER = "its scope is close to its quota (maintenance.per_user)"
OVER_NAMES = "its user's names in the namespace are close to their bound"
MOST_CACHES = 32  # names that a user's jobs have given their caches, cache=NAME
OVER_CACHES = f"its user has used {MOST_CACHES} other names of caches since (cache=NAME)"
_PER_ORIGIN = 300  # most bytes of JSON of an entry's origin and mark, without the entry's name, which each repeats

_MAINTAINED = "maintained"  # in ARTIFACTS: its mtime is when maintenance last succeeded
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})  # rmdir(2)

_held: list[HeldLock] = []  # keeps locks until this process ends


class Bundle(NamedTuple):
    """One bundle of the store, as maintenance and `warmstart cache list` see it."""

    scope: str
    profile: str
    namespace: str
    bundle: str
    sha256: str
    size: int  # of the squashfs file, bytes
    entries: int  # number
    user: str  # name of the user whose job made it
    used: float  # last fetch, or last use of a node's copy; seconds since the epoch, exact to a day
    stored: int  # bytes in the store: squashfs, manifest, and its row in the index
    weight: int  # `manifest.weight`, bytes
    cache: str = ""  # as in `index.Listed`


class Use(NamedTuple):
    """The last use of a node's copy of a bundle."""

    scope: str
    profile: str
    namespace: str
    bundle: str
    at: float  # seconds since the epoch


class Merger(NamedTuple):
    """Bundles of one user to merge, and the entries to take from each."""

    user: str
    sources: list[str]  # oldest first
    entries: dict[str, list[str]]  # bundle → entries; without sources that provide none
    supersedes: dict[str, str]  # what the new bundle supersedes (`manifest.Manifest`)


class Expired(NamedTuple):
    """A bundle to remove, and why."""

    bundle: Bundle
    reason: str


def lock(store: str) -> bool:
    """Take the lock of maintenance until this process ends; return False if another host has it."""
    with store_errors("lock the store's maintenance"):
        ensure_dir(os.path.join(store, ARTIFACTS), 0o700)
        held = try_lock(os.path.join(store, ARTIFACTS, LOCKS), "maintenance")
    if held is not None:
        _held.append(held)
    return held is not None


def record_maintained(store: str) -> None:
    """Record the time of a maintenance run that got to its end."""
    with store_errors("record the store's maintenance"), opened_dir(os.path.join(store, ARTIFACTS)) as fd:
        replace_file(fd, _MAINTAINED, b"", 0o600)


def last_maintained(store: str) -> float | None:
    """Return how many seconds ago the last maintenance run of the store succeeded, None if none ever did."""
    try:
        return time.time() - os.stat(os.path.join(store, ARTIFACTS, _MAINTAINED), follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None


def scopes(store: str) -> list[str]:
    """Return the names of all scopes of the store, sorted."""
    with store_errors("list the store"):
        return list(filter(is_component, _folders(os.path.join(store, ARTIFACTS))))


def namespaces(store: str, scope: str) -> list[Namespace]:
    """Return all namespaces of a scope, sorted."""
    with store_errors(f"list the scope {scope}"):
        return list(_namespaces(store, scope))


def _namespaces(store: str, scope: str) -> Iterator[Namespace]:
    top = os.path.join(store, ARTIFACTS, scope)
    for profile in _folders(top):
        for name in _folders(os.path.join(top, profile)):
            namespace = Namespace(store, scope, profile, name)
            with suppress(ValueError):  # not a name of the layout
                _ = namespace.path
                yield namespace


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as items:
            return sorted(item.name for item in items if item.is_dir(follow_symlinks=False) and item.name != LOCKS)
    except FileNotFoundError:
        return []


def survey(where: Namespace, writer: str) -> list[Bundle]:
    """Return all bundles of a namespace that readers see."""
    surveyed = []
    with store_errors("survey a namespace", where.path):
        for listed in index.read(where.path, writer).bundles:
            with suppress(FileNotFoundError):
                path = os.path.join(where.path, listed.bundle)
                used = os.stat(path + BUNDLE).st_mtime
                stored = listed.size + os.stat(path + MANIFEST).st_size + index.encoded_size(listed)
                rest = (listed.sha256, listed.size, len(listed.entries), listed.user, used, stored, listed.weight)
                surveyed.append(Bundle(where.scope, where.profile, where.name, listed.bundle, *rest, listed.cache))
    return surveyed


def record_uses(store: str, uses: list[Use]) -> int:
    """Record the last uses of bundles, at most once a day (of a whole, an hour) for each; return how many were updated.

    A bundle that fails keeps no other: garbage collection would take what is in use. The first such error is raised.
    """
    recorded = 0
    failure = None
    for scope, profile, name, bundle, at in uses:
        if not is_bundle_id(bundle):
            continue
        path = os.path.join(Namespace(store, scope, profile, name).path, bundle + BUNDLE)
        try:
            with store_errors("record a use"), suppress(FileNotFoundError):
                if os.stat(path, follow_symlinks=False).st_mtime < at - (HOUR if is_whole(profile) else DAY):
                    os.utime(path, (at, at), follow_symlinks=False)
                    recorded += 1
        except StoreError as error:
            failure = failure or error
    if failure:
        raise failure
    return recorded


def remove(where: Namespace, writer: str, names: list[str]) -> list[str]:
    """Remove bundles; return those that existed. What they superseded stays superseded."""
    path = where.path
    with store_errors("remove bundles", path), opened_dir(path) as fd, publish_lock(path):
        _hand_on_marks(where, fd, names, writer)
        there = [bundle for bundle in names if is_bundle_id(bundle) and unlink_if_there(bundle + MANIFEST, fd)]
        index.update(fd, writer)
        for bundle in names:
            unlink_if_there(bundle + BUNDLE, fd)
        bundles.forget_sum(where.store, where.scope)
    return there


def quarantine(where: Namespace, writer: str, bundle: str) -> bool:
    """Move a damaged bundle into `quarantine/`; return False if it is gone."""
    path = where.path
    with store_errors("quarantine a bundle", path), opened_dir(path) as fd, publish_lock(path):
        ensure_dir(QUARANTINE, 0o700, fd)
        _hand_on_marks(where, fd, [bundle], writer)
        with opened_dir(QUARANTINE, fd) as quarantine_fd:
            there = _move(bundle + MANIFEST, fd, quarantine_fd)
            index.update(fd, writer)  # always, because a process that moved it may have died before this
            _move(bundle + BUNDLE, fd, quarantine_fd)
    return there


def _hand_on_marks(where: Namespace, fd: int, names: Collection[str], writer: str) -> None:
    """Publish the marks of bundles that are about to go, in bundles without entries.

    Otherwise readers would get the stale entries again of which these bundles took the place. A bundle has one
    producer, so each user has a bundle.
    """
    staying = []
    going: dict[tuple[str, int], list[Listed]] = {}
    for listed in index.update(fd, writer).bundles:
        if listed.bundle not in names:
            staying.append(listed)
        elif listed.supersedes:
            going.setdefault((listed.user, listed.uid), []).append(listed)
    remaining = index.marks(staying)
    elsewhere = _elsewhere(where, writer, index.marks(listed for group in going.values() for listed in group))
    for group in going.values():
        live = _live_marks(group, staying, elsewhere)
        supersedes = {entry: mark for entry, mark in live.items() if remaining.get(entry, "") < mark}
        if supersedes:
            bundles.publish_marks(where, fd, writer, group[-1], supersedes)


def _hides(entry: str, mark: str, others: Iterable[Listed]) -> bool:
    return any(entry in other.entries and index.is_superseded(other, entry, {entry: mark}) for other in others)


def _move(name: str, source: int, target: int) -> bool:
    try:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
    except FileNotFoundError:
        return False
    return True


def sweep(where: Namespace, writer: str, now: float) -> list[str]:
    """Remove leftovers of dead publishers, and update the index; return the removed names."""
    path = where.path
    with store_errors("sweep a namespace", path), opened_dir(path) as fd:
        names = set(os.listdir(fd))
        swept = [name for name in sorted(names) if _is_left_over(fd, name, names, now - ORPHAN_SECONDS)]
        for name in swept:
            unlink_if_there(name, fd)
        with publish_lock(path):
            index.update(fd, writer)
    return swept


def remove_empty(where: Namespace, now: float) -> bool:
    """Remove a namespace without bundles in which nothing has changed for a day, and its parents if they are empty.

    Return whether it was removed. A publisher that comes at the same moment keeps it, or finds it gone and fails: its
    run waits.
    """
    path = where.path
    with store_errors("remove an empty namespace"):
        try:
            with opened_dir(path) as fd:
                if os.fstat(fd).st_mtime > now - ORPHAN_SECONDS or _has_content(fd):
                    return False
                unlink_if_there(index.NAME, fd)
                with suppress(FileNotFoundError), opened_dir(LOCKS, fd) as locks_fd:
                    for name in os.listdir(locks_fd):
                        unlink_if_there(name, locks_fd)
                for folder in (LOCKS, QUARANTINE):
                    with suppress(FileNotFoundError):
                        os.rmdir(folder, dir_fd=fd)
            os.rmdir(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
            return False
        for folder in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
            with suppress(OSError):
                os.rmdir(folder)
    return True


def _has_content(fd: int) -> bool:
    """Return whether a namespace has more than its index, its locks and an empty quarantine."""
    with suppress(FileNotFoundError), opened_dir(QUARANTINE, fd) as quarantine_fd:
        if os.listdir(quarantine_fd):
            return True
    return not {index.NAME, LOCKS, QUARANTINE}.issuperset(os.listdir(fd))


def sweep_top(store: str, now: float) -> list[str]:
    """Remove old temp files, sums of scopes and boards outside of the namespaces; return the removed paths.

    At most `MOST_SWEPT` of each, the next time more.
    """
    swept = []
    for folder, prefix, age in (
        (ARTIFACTS, TEMP_PREFIX, ORPHAN_SECONDS),
        (f"{ARTIFACTS}/{LOCKS}", bundles.SUM, bundles.SUM_KEPT_S),
        (board.DIRECTORY, "", BOARD_SECONDS),
    ):
        with store_errors("sweep the store"), suppress(FileNotFoundError), opened_dir(f"{store}/{folder}") as fd:
            names = [name for name in sorted(os.listdir(fd)) if name.startswith(prefix) or is_temporary(name)]
            old = [name for name in names if changed(name, fd) < now - age]
            swept += [f"{folder}/{name}" for name in old[:MOST_SWEPT] if _removed(name, fd)]
    return swept


def _removed(name: str, fd: int) -> bool:
    try:
        return unlink_if_there(name, fd)
    except IsADirectoryError:  # the board of a run whose head node crashed, or that got no image
        return board.remove(name, fd)


def _is_left_over(fd: int, name: str, names: set[str], before: float) -> bool:
    stem, suffix = os.path.splitext(name)
    orphan = suffix == BUNDLE and is_bundle_id(stem) and stem + MANIFEST not in names
    if not (orphan or name.startswith(TEMP_PREFIX)):
        return False
    if orphan and changed(stem + MANIFEST, fd) < float("inf"):  # by name, because the listing may be stale
        return False
    return changed(name, fd) < before  # not by mtime, which is the last use


def superseded(where: Namespace, writer: str, now: float) -> list[str]:
    """Return the bundles that nobody needs any more, and nobody still reads.

    These were replaced by a compacted bundle or superseded in all their entries more than `GRACE_SECONDS` ago, or have
    no entries and supersede nothing that is left. Leaves out bundles with an entry that no other bundle provides.
    """
    with store_errors("look for replaced bundles", where.path), opened_dir(where.path) as fd:
        with publish_lock(where.path):
            indexed = index.update(fd, writer).bundles
        elsewhere = _elsewhere(where, writer, index.marks(indexed))
        settled = [listed for listed in indexed if _is_past_grace(fd, listed, now)]
    replaced = {old for listed in settled for old in listed.replaces}
    youngest = index.marks(settled)
    needed = {
        listed.bundle: {entry for entry in listed.entries if not index.is_superseded(listed, entry, youngest)}
        for listed in indexed
    }
    staying = {entry for listed in indexed if listed.bundle not in replaced for entry in needed[listed.bundle]}
    return [
        listed.bundle
        for listed in indexed
        if (listed.bundle in replaced and staying >= needed[listed.bundle])
        or (not needed[listed.bundle] and not _live_marks([listed], indexed, elsewhere))
    ]


def _is_past_grace(fd: int, listed: Listed, now: float) -> bool:
    if not (listed.replaces or listed.supersedes):
        return False
    with suppress(FileNotFoundError):
        return os.stat(listed.bundle + MANIFEST, dir_fd=fd, follow_symlinks=False).st_ctime < now - GRACE_SECONDS
    return False


def _live_marks(group: Sequence[Listed], indexed: Iterable[Listed], elsewhere: Collection[str]) -> dict[str, str]:
    """Return the marks of bundles that alone hide something: in other bundles of the scope, or `elsewhere`."""
    own = {listed.bundle for listed in group}
    others = [listed for listed in indexed if listed.bundle not in own]
    younger = index.marks(others)
    return {
        entry: mark
        for entry, mark in index.marks(group).items()
        if younger.get(entry, "") <= mark and (entry in elsewhere or _hides(entry, mark, others))
    }


def _elsewhere(where: Namespace, writer: str, marked: Collection[str]) -> set[str]:
    """Return which of these entries, marked in this scope, are hidden in other scopes: none, unless it is a user's.

    All of them, if these scopes cannot be read: too many marks do no harm.
    """
    if not (marked and is_user_scope(where.scope)):
        return set()
    shared = [scope for scope in _folders(os.path.join(where.store, ARTIFACTS)) if not is_user_scope(scope)]
    try:
        indexes = [index.read(where._replace(scope=scope).path, writer) for scope in shared]
    except OSError:
        return set(marked)
    return {entry for listing in indexes for listed in listing.bundles for entry in listed.entries.keys() & marked}


def plan_compaction(
    where: Namespace, writer: str, fewest: int, most_bytes: int, only: list[str] | None = None
) -> list[Merger]:
    """Return which bundles of a namespace to merge; arguments as in `mergers`."""
    with store_errors("plan a compaction", where.path), opened_dir(where.path) as fd:
        with publish_lock(where.path):
            indexed = index.update(fd, writer).bundles
        elsewhere = _elsewhere(where, writer, index.marks(indexed))
    return mergers(indexed, fewest, most_bytes, elsewhere, only)


def mergers(
    indexed: list[Listed],
    fewest: int,
    most_bytes: int,
    elsewhere: Collection[str] = frozenset(),
    only: Collection[str] | None = None,
) -> list[Merger]:
    """Return which of a namespace's bundles to merge: per user at least `fewest`, with at most `most_bytes` together.

    `indexed` is ordered oldest first. `elsewhere` are the entries that marks of this scope hide in other scopes. `only`
    are the bundles that may be merged, by default all.
    """
    replaced = {old for listed in indexed for old in listed.replaces}
    youngest = index.marks(indexed)
    provided: dict[str, list[str]] = {listed.bundle: [] for listed in indexed}  # bundle → entries that readers take
    for entry, listed in index.providers(indexed).items():
        provided[listed.bundle].append(entry)
    groups: dict[tuple[str, int], list[Listed]] = {}
    for listed in indexed:
        if listed.bundle not in replaced and (only is None or listed.bundle in only):
            groups.setdefault((listed.user, listed.uid), []).append(listed)
    plans = []
    for (user, _), group in groups.items():
        chosen = _bounded(group, provided, most_bytes)
        if len(chosen) < fewest:
            continue
        entries = {listed.bundle: provided[listed.bundle] for listed in chosen if provided[listed.bundle]}
        # The new bundle is older than the marks of its entries. What it takes is what these marks left, so it has them.
        taken = {entry: youngest[entry] for names in entries.values() for entry in names if entry in youngest}
        supersedes = {**_live_marks(chosen, indexed, elsewhere), **taken}
        if entries or supersedes:
            plans.append(Merger(user, [listed.bundle for listed in chosen], entries, supersedes))
    return plans


def _bounded(group: list[Listed], provided: dict[str, list[str]], most_bytes: int) -> list[Listed]:
    """Return the smallest of a user's bundles, as many as fit into one; ordered oldest first."""
    size = count = weight = 0
    chosen = []
    for listed in sorted(group, key=lambda listed: listed.size):
        size += listed.size
        count += len(provided[listed.bundle])
        # The merged bundle's manifest says of each entry where it is from, and what it superseded.
        weight += listed.weight + sum(2 * len(entry) + _PER_ORIGIN for entry in provided[listed.bundle])
        if size > most_bytes or count > MOST_ENTRIES or weight > MOST_PER_BUNDLE:
            break
        chosen.append(listed)
    return sorted(chosen, key=lambda listed: listed.bundle)


def expired(candidates: Iterable[Bundle], policy: Maintenance, now: float) -> list[Expired]:
    """Return the bundles to remove: all unused for `policy.keep` seconds, and the least recently used beyond a bound.

    Bounds are the quota of a scope, what one user's bundles of a namespace may weigh, and names of caches.
    """
    removals = []
    scopes: dict[str, list[Bundle]] = {}
    users: dict[tuple[str, ...], list[Bundle]] = {}
    for bundle in candidates:
        if bundle.entries and bundle.used < now - policy.keep:
            removals.append(Expired(bundle, UNUSED))
        else:
            scopes.setdefault(bundle.scope, []).append(bundle)
            users.setdefault((bundle.scope, bundle.profile, bundle.namespace, bundle.user), []).append(bundle)
    for used in scopes.values():
        named = [bundle for bundle in used if bundle.cache and bundle.entries]
        latest: dict[str, float] = {}
        for bundle in named:
            latest[bundle.cache] = max(bundle.used, latest.get(bundle.cache, 0.0))
        kept = sorted(latest, key=lambda cache: latest[cache], reverse=True)[:MOST_CACHES]
        removals.extend(Expired(bundle, OVER_CACHES) for bundle in named if bundle.cache not in kept)
    for used in users.values():
        going = _beyond(used, MOST_PER_USER, lambda bundle: bundle.weight, now)
        removals.extend(Expired(bundle, OVER_NAMES) for bundle in going)
    gone = {expired.bundle for expired in removals}
    for scope, used in scopes.items():
        staying = [bundle for bundle in used if bundle not in gone]
        going = _beyond(staying, bundles.quota(scope, policy), lambda bundle: bundle.stored, now)
        removals.extend(Expired(bundle, OVER) for bundle in going)
    return removals


def _beyond(used: list[Bundle], quota: int, size_of: Callable[[Bundle], int], now: float) -> list[Bundle]:
    """Return the least recently used bundles to remove, so that new ones fit into the quota.

    The most recently used bundle stays unless all together exceed the quota. A whole that a job may be reading stays.
    """
    size = sum(map(size_of, used))
    excess = size - LOW * quota if size > HIGH * quota else 0
    going = []
    # A bundle without entries goes when it hides nothing any more (`superseded`).
    by_use = sorted((bundle for bundle in used if bundle.entries), key=lambda bundle: (bundle.used, bundle.bundle))
    for bundle in by_use if size > quota else by_use[:-1]:
        if excess <= 0:
            break
        if is_whole(bundle.profile) and bundle.used > now - IN_USE_SECONDS:
            continue
        going.append(bundle)
        excess -= size_of(bundle)
    return going


def today() -> int:
    """Return the number of days since the epoch, UTC."""
    return int(time.time() // DAY)

"""Offer, fetch and publish bundles; per-scope byte quotas. Runs as the store's owner. Hot path: `offers`.

Each entry comes from exactly one bundle: the oldest one in the most trusted scope that has it, leaving out bundles
that a younger one supersedes for this entry (`store.index`). This is the meaning of "first publisher wins"
(docs/threats.md, row 8).

Quotas are approximate at publish and exact in garbage collection (`store.maintenance`).
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.errors import ResourceError, StoreError, UserError
from warmstart.host import wire
from warmstart.host.deadline import after
from warmstart.host.files import (
    DiskFailed,
    ReadFailed,
    closing,
    copy_hashed,
    open_regular,
    opened_dir,
    opened_lock,
    wait_flock,
    weakness,
    write_all,
)
from warmstart.host.wire import Json
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, Mapping, NamedTuple, dumps, partial, suppress
from warmstart.policy.keys import Maintenance
from warmstart.store import index, layout, manifest
from warmstart.store.index import Head, Listed
from warmstart.store.layout import (
    ARTIFACTS,
    BUNDLE,
    MANIFEST,
    Namespace,
    StoreFailed,
    is_bundle_id,
    is_component,
    is_user_scope,
    store_errors,
)
from warmstart.store.manifest import Draft, Entries, Manifest, ManifestUnreadable, Producer

if TYPE_CHECKING:
    from warmstart.store.locks import HeldLock

_MAKING = "making"  # a lock's name
SUM = "size."  # before a scope's name, among the locks of ARTIFACTS: the sum of its bytes
SUM_KEPT_S = 86_400.0
SUM_EXACT_S = 600.0  # maintenance may make room at any time
SUM_LOCK_S = 2.0
_SUM_SIZE = 200  # bytes; always as many, so that a shorter one leaves nothing of a longer one
MOST_NAMESPACES = 1000  # of a scope and profile, with which a job's own name of its caches adds no other

# Sets the id of a new bundle by the index and the directory of its namespace; returns None if it is not needed.
_WithId = Callable[[Manifest, index.Index, int], Manifest | None]


_held: list[HeldLock] = []  # keeps locks until this process ends


MOST_BYTES = 8 << 30  # of a bundle that is made, and of all that are fetched for one job


class BundleDamaged(StoreError):
    """A bundle is not what its publisher wrote."""

    code = "bundle-damaged"
    template = "bundle {bundle}: {problem}"
    hint = "run `warmstart cache verify` to quarantine it; check the store's disks for errors"


class BundleGone(StoreError):
    """A bundle that the index had is missing, or offered to nobody: it was removed or replaced meanwhile."""

    code = "bundle-gone"
    template = "bundle {bundle} is not offered by the store any more"
    hint = "ignore it if it happens once; otherwise run `warmstart cache reindex`"


class FetchOverBudget(ResourceError):
    """A bundle is not on the node, and its fetch takes more bytes or time than there are."""

    code = "fetch-over-budget"
    template = "bundle {bundle}: {problem}"
    hint = "later jobs go on with what came; raise seed.fetch_budget in the policy, or what nodes keep of its kind"


class QuotaExceeded(UserError):
    """The scope's quota is used up; maintenance makes room by evicting its least recently used bundles."""

    code = "cache-quota-exceeded"
    template = "scope {scope} uses {used} of its {quota} bytes; {more} more do not fit"
    hint = "run `warmstart maintain --store`; raise maintenance.per_user if this happens often"


class Offer(NamedTuple):
    """One bundle that a job can be seeded from, and the entries to take from it.

    A proposal has offers (`seed.together`): nodes of releases with other fields do not agree.
    """

    scope: str
    bundle: str
    sha256: str  # of the squashfs file
    size: int  # of the squashfs file, bytes
    entries: list[str]  # empty if they are all of the bundle's, and their names were not asked for
    whole: bool  # `entries` are all entries of the bundle
    number: int = 0  # of entries, where their names are left out


class Offers(NamedTuple):
    """What a namespace offers a job."""

    offers: list[Offer]  # in the order of an overlay's layers, topmost first
    refused: dict[str, str]  # bundle → why it is not used; SCOPE/* if the namespace cannot be read there


class Published(NamedTuple):
    """The result of publishing a bundle."""

    bundle: str | None  # its id; None if it was not needed any more
    sha256: str  # of the squashfs file
    size: int  # of the squashfs file, bytes
    indexed: bool  # False if it is published but the index could not be written; the next update lists it
    superseding: list[str] = []  # noqa: RUF012 - entries of which it takes the place, or that it retires


class _Sum(NamedTuple):
    """The bytes of a scope."""

    used: int  # by its files at `at`, and by what was announced since
    announced: int
    at: float  # seconds since the epoch


class Reindexed(NamedTuple):
    """The result of rebuilding an index."""

    bundles: int  # number listed
    refused: dict[str, str]  # bundle → why its manifest is unusable


def offers(  # noqa: PLR0917 - what to whom
    store: str,
    scopes: list[str],
    profile: str,
    namespace: str,
    writer: str,
    named: bool = True,
) -> Offers:
    """Return which entries to take from which bundle; `scopes` are ordered most trusted first.

    Unless they are to be `named`, the names of entries are left out where all is taken of large bundles: then the time
    that this takes does not depend on how many they are.

    Each entry is in one offer at most. A missing namespace counts as empty, and so does one of a shared scope that
    cannot be read; what a user's own scope hides in the others must be known. Raises `StoreFailed` if the store fails
    or is not mounted.
    """
    offers = Offers([], {})
    usable: dict[str, list[Listed]] = {}
    heads = {} if named else _heads(store, scopes, profile, namespace)
    is_plain = _is_one_plain(heads)
    for scope in scopes:
        where = Namespace(store, scope, profile, namespace)
        head = heads.get(scope)
        try:
            if head and (head.is_named or is_plain):
                listing = head.listing
            else:
                with store_errors("read the index"):
                    listing = index.read(where.path, writer)
        except StoreFailed as error:
            if is_user_scope(scope):
                raise
            offers.refused[f"{scope}/*"] = str(error)
            continue
        offers.refused.update(listing.refused)
        usable[scope] = listing.bundles
    offers.offers.extend(_offers(usable))
    if not offers.offers:
        _require_store(store)
    return offers


def _heads(store: str, scopes: list[str], profile: str, namespace: str) -> dict[str, Head | None]:
    """Return what is at the beginning of each scope's index; None of one that cannot be used."""
    heads: dict[str, Head | None] = {}
    for scope in scopes:
        heads[scope] = None
        with suppress(OSError):
            heads[scope] = index.read_head(Namespace(store, scope, profile, namespace).path)
    return heads


def _is_one_plain(heads: dict[str, Head | None]) -> bool:
    """Return whether readers take all entries of all bundles: no other scope has any, and none is in two of them."""
    there = [head for head in heads.values() if head is None or head.listing.bundles]
    return all(head and head.is_plain for head in there) and len(there) <= 1


def _offers(usable: dict[str, list[Listed]]) -> list[Offer]:
    """Return the offers of these scopes, most trusted first, in the order of layers."""
    hidden = _hidden_by_user(usable)
    taken: set[str] = set()
    offered: list[tuple[Offer, Listed]] = []
    has_marks = False
    for scope, bundles in usable.items():
        youngest = index.marks(bundles)
        has_marks = has_marks or bool(youngest)
        unwanted = taken if is_user_scope(scope) else taken | hidden
        for listed in bundles:
            new = [entry for entry in listed.entries if entry not in unwanted]
            if youngest:
                new = [entry for entry in new if not index.is_superseded(listed, entry, youngest)]
            if new:
                taken.update(new)
                unwanted.update(new)
                offer = Offer(scope, *listed[:3], new, whole=len(new) == len(listed.entries))
                offered.append((offer, listed))
            elif listed.number and not listed.entries:  # their names were not read: all are taken
                offered.append((Offer(scope, *listed[:3], [], whole=True, number=listed.number), listed))
    return _layered(offered) if has_marks else [offer for offer, _ in offered]


def _hidden_by_user(usable: dict[str, list[Listed]]) -> set[str]:
    """Return the entries that a user's own scope hides in other scopes.

    These are the marked ones, and what else the bundles provide that provide marked ones. These bundles cover those of
    other scopes, which could not provide it.
    """
    hidden: set[str] = set()
    for scope, bundles in usable.items():
        if is_user_scope(scope) and (youngest := index.marks(bundles)):
            provided = index.providers(bundles)
            on_top = {listed.bundle for entry, listed in provided.items() if entry in youngest}
            hidden.update(youngest, (entry for entry, listed in provided.items() if listed.bundle in on_top))
    return hidden


def _layered(offered: list[tuple[Offer, Listed]]) -> list[Offer]:
    """Return offers so that no bundle covers an entry that one below it provides.

    Without marks the given order has this property, because the oldest provides. Otherwise each bundle comes after
    those that provide entries which it has, too. If that is a circle, the given order counts, and what is covered is
    not shown (`seed.overlay`).
    """
    provider = {entry: offer.bundle for offer, _ in offered for entry in offer.entries}
    left = {offer.bundle: (offer, {provider.get(entry) for entry in listed.entries}) for offer, listed in offered}
    ordered = []
    while left:
        free = (bundle for bundle, (_, above) in left.items() if not (above - {bundle}) & left.keys())
        offer, _ = left.pop(next(free, next(iter(left))))
        ordered.append(offer)
    return ordered


def _require_store(store: str) -> None:
    """Raise `StoreFailed` if the store is not mounted: its mount point is usually an empty directory of root's."""
    with store_errors("find the store"):
        if os.stat(store).st_uid != os.geteuid():
            raise OSError(errno.ENODEV, "the store's owner does not own it; it may not be mounted", store)


def known_entries(
    where: Namespace, writer: str, user: str, uid: int, *, quota: int = 0, fresh: bool = False
) -> list[str]:
    """Return the entries that need not be harvested: readers of the scope have them.

    A `fresh` job replaces entries, so none are. `quota` is in bytes, 0 for none.
    Raises `QuotaExceeded` if the scope's quota is used up, `HarvestTooLarge` if the user's names in the namespace
    are, or `StoreFailed`.
    """
    with store_errors("read the index"):
        if quota:
            check_quota(where.store, where.scope, 1, quota)
        listing = index.read(where.path, writer)
        index.check_user_weight(user, uid, listing, 1)
        return [] if fresh else sorted(index.providers(listing.bundles))


def fetch(where: Namespace, offer: Offer, fd: int) -> Entries:
    """Copy a bundle into the inherited descriptor `fd`; return its entries with their files.

    What `fd` has already is kept: an earlier fetch of the same bundle left it. All bytes are hashed. They and the
    manifest must be as offered, or it raises `BundleDamaged`, and the content of `fd` is useless. Also raises
    `BundleGone`, `ManifestUnreadable`, `StoreFailed`, and `DiskFailed` if the node's disk fails.
    """
    bundle = offer.bundle
    if not layout.is_bundle_id(bundle):
        raise ValueError(f"not a bundle's id: {bundle!r}")
    with store_errors("fetch a bundle", where.path):
        try:
            with opened_dir(where.path) as dir_fd:
                stored = index.read_manifest(dir_fd, bundle)
                if (stored.sha256, stored.size) != (offer.sha256, offer.size):
                    raise BundleDamaged(bundle=bundle, problem="index and manifest disagree")
                source = open_regular(bundle + BUNDLE, dir_fd)
        except FileNotFoundError:
            raise BundleGone(bundle=bundle) from None
        try:
            if weak := weakness(os.fstat(source), (0, os.geteuid())):
                raise BundleDamaged(bundle=bundle, problem=weak)
            copy_verified(bundle, source, fd, offer.sha256, offer.size)
        finally:
            os.close(source)
    return stored.entries


def copy_verified(bundle: str, source: int, fd: int, sha256: str, size: int) -> None:
    """Copy a bundle's open squashfs into `fd`; arguments and errors as `fetch`."""
    try:
        have = os.lseek(fd, 0, os.SEEK_END)
        copied = copy_hashed(source, fd, most=size + 1, have=have)
    except ReadFailed:
        raise
    except OSError as error:
        raise DiskFailed(what=f"bundle {bundle}", problem=error.strerror) from error
    if copied != (size, sha256):
        raise BundleDamaged(bundle=bundle, problem="its bytes are not those of its manifest")


def read_manifest(where: Namespace, bundle: str) -> Manifest:
    """Return a bundle's manifest; raises `ManifestUnreadable`, `BundleGone` or `StoreFailed`."""
    if not layout.is_bundle_id(bundle):
        raise BundleGone(bundle=bundle)
    with store_errors("read a manifest", where.path):
        try:
            with opened_dir(where.path) as dir_fd:
                return index.read_manifest(dir_fd, bundle)
        except FileNotFoundError:
            raise BundleGone(bundle=bundle) from None


def publish_bundle(where: Namespace, fd: int, draft: Draft, writer: str, quota: int = 0) -> Published:
    """Publish the squashfs of the inherited descriptor `fd`; readers see it whole or not at all.

    `writer` (node and run id) is part of the names of temp files. `quota` is in bytes, 0 for none. The result's
    `bundle` is None if readers would take nothing from it (`index.with_new_id`).

    Raises `QuotaExceeded` if the scope would exceed `quota`, `HarvestTooLarge` (`index.check_weight`, `_check_caches`),
    `StoreFull` or `StoreFailed`. After the last two, readers see nothing of the bundle, or all of it if only the final
    sync of the directory failed.
    """
    if quota:
        size = stored_size(described(where, draft, "0" * 64, os.fstat(fd).st_size))
        check_quota(where.store, where.scope, size, quota, announced=True)
    return publish_as(where, fd, draft, writer, partial(index.with_new_id, draft))


def lock_making(where: Namespace) -> bool:
    """Take the lock of who makes what a namespace is to have, until this process ends; return False if it is held."""
    from warmstart.store.locks import try_lock

    with store_errors("lock a namespace", where.path):
        os.close(layout.make_namespace(where))
        held = try_lock(os.path.join(where.path, layout.LOCKS), _MAKING)
    if held is not None:
        _held.append(held)
    return held is not None


def publish_compacted(where: Namespace, fd: int, draft: Draft, writer: str) -> Published:
    """Publish a bundle that replaces others, with an id just before the oldest of them; errors as `publish_bundle`.

    The result's `bundle` is None if one of the replaced bundles is gone.
    """
    return publish_as(where, fd, draft, writer, lambda new, before, _: index.with_older_id(new, before))


def publish_as(where: Namespace, fd: int, draft: Draft, writer: str, with_id: _WithId) -> Published:
    """Publish a bundle with the id that `with_id` gives it. Errors as `publish_bundle`."""
    from warmstart.store.atomic import temp_file  # not needed to read
    from warmstart.store.locks import publish_lock

    with store_errors("publish a bundle", where.path):
        _check_caches(where, draft)
        with closing(layout.make_namespace(where)) as dir_fd, temp_file(dir_fd, writer) as (temp, out):
            size, sha256 = copy_hashed(fd, out)
            os.fsync(out)  # the slow part, so before taking the lock
            new = described(where, draft, sha256, size)
            with publish_lock(where.path):
                before = index.current(dir_fd)  # one that cannot be replaced stops nobody
                identified = with_id(new, before, dir_fd)
                if identified is not None:
                    index.check_weight(identified, before)
                    link(dir_fd, writer, (temp, out), identified)
                indexed = _is_listed(dir_fd, writer)
    superseding = list(identified.supersedes) if identified else []
    return Published(identified and identified.bundle, sha256, size, indexed, superseding)


def _check_caches(where: Namespace, draft: Draft) -> None:
    name = draft.facts.get("cache", "")
    if name and not os.path.exists(where.path):
        with suppress(FileNotFoundError):
            if (number := len(os.listdir(os.path.dirname(where.path)))) >= MOST_NAMESPACES:
                known = f"{where.scope} has {number} of {where.profile} already"
                raise index.HarvestTooLarge(problem=f"nothing is kept of cache={name}, which is new: {known}")


def described(where: Namespace, draft: Draft, sha256: str, size: int) -> Manifest:
    """Return the manifest of a squashfs file, without id and time."""
    new = Manifest("", sha256, size, 0.0, *where[1:], draft.producer, draft.facts, draft.entries)
    return new._replace(origins=draft.origins, replaces=draft.replaces, supersedes=draft.supersedes)


def stored_size(new: Manifest) -> int:
    """Return how many bytes a bundle takes in the store: squashfs, manifest, and its row in the index."""
    return new.size + len(manifest.encode(new)) + index.encoded_size(index.listed_of(new))


def link(
    dir_fd: int, writer: str, squashfs: tuple[str, int], new: Manifest, more: Mapping[str, Json] | None = None
) -> None:
    """Make a bundle visible. `squashfs` is a temp file's name and descriptor; `more` goes into the manifest, too."""
    from warmstart.store.atomic import publish, temp_file

    with temp_file(dir_fd, writer) as (temp, fd):
        write_all(fd, manifest.encode(new, more))
        os.fsync(fd)  # before the first link: if the store is full, nothing has been linked
        for (name, file), suffix in ((squashfs, BUNDLE), ((temp, fd), MANIFEST)):
            if not publish(dir_fd, name, file, new.bundle + suffix):
                raise FileExistsError(errno.EEXIST, "another bundle has this id", new.bundle)


def _is_listed(dir_fd: int, writer: str) -> bool:
    """Update the index; return whether it lists all bundles."""
    try:
        index.update(dir_fd, writer)
    except OSError:
        return False
    return True


def publish_marks(where: Namespace, dir_fd: int, writer: str, like: Listed, supersedes: dict[str, str]) -> None:
    """Publish a bundle without entries that supersedes these entries, of the producer of the bundle `like`.

    If the manifest of `like` is damaged, the index says whose it is. The squashfs is an empty file, which nobody
    reads. The caller holds the publish lock. Raises `OSError`.
    """
    from warmstart.store.atomic import temp_file

    try:
        old = index.read_manifest(dir_fd, like.bundle)
        producer, facts = old.producer, old.facts
    except ManifestUnreadable:
        producer, facts = Producer(0, like.user, like.uid, "", ""), {}
    with temp_file(dir_fd, writer) as (temp, fd):
        size, sha256 = copy_hashed(fd)
        new = described(where, Draft(producer, facts, {}, supersedes=supersedes), sha256, size)
        link(dir_fd, writer, (temp, fd), index.with_youngest_id(new, index.current(dir_fd)))
    index.update(dir_fd, writer)


def reindex(where: Namespace, writer: str) -> Reindexed:
    """Rebuild the index of a namespace from its manifests."""
    from warmstart.store.locks import publish_lock

    with store_errors("rebuild the index", where.path), opened_dir(where.path) as dir_fd, publish_lock(where.path):
        made = index.rebuild(dir_fd, writer)
    return Reindexed(len(made.bundles), made.refused)


def quota(scope: str, rules: Maintenance) -> int:
    """Return the quota of a scope in bytes; `scope` is the name of its directory."""
    kind = scope.partition("-")[0]
    return rules.per_user * {"user": 1, "account": 10}.get(kind, 40)


def check_quota(store: str, scope: str, more: int, most: int, *, announced: bool = False) -> None:
    """Raise `QuotaExceeded` if a scope would have more than `most` bytes with `more` added.

    The sum of a scope's files is kept in a file, so that a publisher need not walk the scope. What is `announced`, to
    be published now, is added to it. It only saves work: it is made again if it is damaged or `SUM_KEPT_S` old, and
    before it refuses anybody, unless it is younger than `SUM_EXACT_S` and nothing was announced since.

    Concurrent publishers may together exceed the quota, and so may others in a day, by what nobody announced or was
    announced without the file's lock.
    """
    try:
        with opened_lock(os.path.join(store, ARTIFACTS, layout.LOCKS), SUM + scope) as fd:
            with suppress(OSError):  # a file system without locks
                wait_flock(fd, after(SUM_LOCK_S))
            used = _used(store, scope, fd, more, most, announced=announced)
    except OSError:  # nothing was published yet, or nothing can be written
        used = _used(store, scope, -1, more, most, announced=announced)
    if used + more > most:
        raise QuotaExceeded(scope=scope, used=used, quota=most, more=more)


def forget_sum(store: str, scope: str) -> None:
    """Have the next publisher sum up a scope, of which something was removed."""
    path, flags = os.path.join(store, ARTIFACTS, layout.LOCKS), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError), opened_dir(path) as locks, closing(os.open(SUM + scope, flags, dir_fd=locks)) as fd:
        os.ftruncate(fd, 0)


def _used(store: str, scope: str, fd: int, more: int, most: int, *, announced: bool) -> int:
    """Return the bytes of a scope without `more`, by the sum in the open file `fd` or its own, which that keeps."""
    now = time.time()
    known = there = _known_sum(fd, now)
    if known is None or (known.used + more > most and (known.announced or now - known.at > SUM_EXACT_S)):
        known = _Sum(sum(_sizes(os.path.join(store, ARTIFACTS, scope))), 0, now)
    used = known.used
    if announced and used + more <= most:
        known = _Sum(used + more, known.announced + more, known.at)
    if known != there:
        with suppress(OSError):  # a full store: the next one sums up again
            os.pwrite(fd, dumps(known._asdict()).encode().ljust(_SUM_SIZE), 0)
    return used


def _known_sum(fd: int, now: float) -> _Sum | None:
    """Return the sum in an open file, None if there is none that may be gone by."""
    with suppress(OSError, ValueError):
        known = wire.from_object(_Sum, wire.parse(os.pread(fd, _SUM_SIZE, 0)))
        if 0 <= known.announced <= known.used and 0 <= now - known.at < SUM_KEPT_S:
            return known
    return None


def _sizes(path: str) -> Iterator[int]:
    """Yield the sizes of a scope's bundles, manifests and indexes in bytes.

    Skips what vanishes or cannot be looked at, which must not stop the scope's other namespaces, and names outside of
    the layout.
    """
    for profile in _components(path):
        for name in _components(os.path.join(path, profile)):
            with suppress(OSError), opened_dir(os.path.join(path, profile, name)) as fd:
                for file in os.listdir(fd):
                    stem, suffix = os.path.splitext(file)
                    if file == index.NAME or (suffix in (BUNDLE, MANIFEST) and is_bundle_id(stem)):
                        with suppress(OSError):
                            yield os.stat(file, dir_fd=fd, follow_symlinks=False).st_size


def _components(path: str) -> list[str]:
    try:
        with opened_dir(path) as fd:
            return [name for name in os.listdir(fd) if is_component(name)]
    except OSError:
        return []

"""Offer, fetch and publish bundles; per-scope byte quotas. Runs as the store's owner. Hot path: `offers`.

One entry comes from exactly one bundle: of the most trusted scope first, and within a scope of the oldest bundle.
That is what "first publisher wins" means (docs/threats.md, row 8).

Quotas are approximate at publish and exact in garbage collection (`store.maintenance`). A scope's size is summed up
each time: a stored sum would be wrong after the first publisher that died. A scope has few namespaces, and compaction
keeps their bundles few.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from warmstart.errors import ResourceError, StoreError, UserError
from warmstart.host.files import ReadFailed, copy_hashed, open_regular, opened_dir, write_all
from warmstart.policy.compiled import Maintenance
from warmstart.store import blocklist, index, layout, manifest
from warmstart.store.atomic import publish, temp_file
from warmstart.store.layout import (
    ARTIFACTS,
    BUNDLE,
    MANIFEST,
    Namespace,
    is_bundle_id,
    is_component,
    store_errors,
)
from warmstart.store.locks import publish_lock
from warmstart.store.manifest import Draft, Manifest

# Gives a new bundle its id, by what the namespace has; None where it is not wanted any more.
_WithId = Callable[[Manifest, index.Index], Manifest | None]


class BundleDamaged(StoreError):
    """The bytes of a bundle are not those that its publisher wrote."""

    code = "bundle-damaged"
    template = "bundle {bundle}: {problem}"
    hint = "`warmstart cache verify` quarantines it; look for errors of the store's disks"


class BundleGone(StoreError):
    """A bundle that the index names is not there any more: mostly maintenance removed it just now."""

    code = "bundle-gone"
    template = "bundle {bundle} is not in the store any more"
    hint = "nothing, if it happens once; else `warmstart cache reindex`"


class CopyFailed(ResourceError):
    """The node could not take a bundle's bytes."""

    code = "bundle-copy-failed"
    template = "bundle {bundle}: {problem}"
    hint = "is there space left on the node's disk?"


class PublishBlocked(StoreError):
    """An administrator has blocked the user, or the namespace."""

    code = "publish-blocked"
    template = "nothing is taken: {what} is blocked"
    hint = "`warmstart cache blocked` says by whom and why"


class QuotaExceeded(UserError):
    """The scope's quota is used up; maintenance makes room by removing the least recently used bundles."""

    code = "cache-quota-exceeded"
    template = "scope {scope} has {used} bytes of the {quota} that it may have; {more} more are not taken"
    hint = "`warmstart maintain --store` makes room; raise maintenance.per_user, per_account or per_site if it is usual"


class Offer(NamedTuple):
    """One bundle that a job can be seeded from, and which of its entries."""

    scope: str
    bundle: str
    sha256: str  # of the squashfs file
    size: int  # of the squashfs file, bytes
    entries: list[str]
    whole: bool  # whether that is all the bundle holds


class Offers(NamedTuple):
    """What a namespace has for a job."""

    offers: list[Offer]  # the most trusted scope first, the oldest bundle first
    refused: dict[str, str]  # bundle → why it, or some of it, is not used


class Published(NamedTuple):
    """What became of a bundle."""

    bundle: str | None  # its id; None: others have published all of it
    sha256: str
    size: int  # bytes
    indexed: bool  # False: it is there, but the index could not be written; the next publisher's will list it


class Reindexed(NamedTuple):
    """What a new index lists."""

    bundles: int
    refused: dict[str, str]  # bundle → why its manifest can't be used


def offers(store: str, scopes: list[str], profile: str, namespace: str, owner: str) -> Offers:
    """Return which entries to take from which bundle; `scopes` from the most trusted one down.

    Every entry is named once. `StoreFailed` where the store refuses or is not there; a namespace that is not there
    is empty.
    """
    result = Offers([], {})
    with store_errors("read what is blocked"):
        blocked = blocklist.read(store)
    if blocked.namespace(profile, namespace):
        return Offers([], {"*": "the namespace is blocked"})
    never = blocked.entries(profile)
    taken = set(never)
    for scope in scopes:
        with store_errors("read the index"):
            found = index.read(Namespace(store, scope, profile, namespace).path, owner)
        result.refused.update(found.refused)
        for listed in found.bundles:
            if blocked.user(listed.user, listed.uid):
                result.refused[listed.bundle] = "its user is blocked"
                continue
            if not never.isdisjoint(listed.entries):
                result.refused[listed.bundle] = "some of its entries are blocked"
            new = [entry for entry in listed.entries if entry not in taken]
            if new:
                taken.update(new)
                whole = len(new) == len(listed.entries)
                result.offers.append(Offer(scope, listed.bundle, listed.sha256, listed.size, new, whole))
    if not result.offers:
        _require_store(store)
    return result


def _require_store(store: str) -> None:
    """Tell an empty store from one that is not mounted, where an empty directory of root's is often seen."""
    with store_errors("find the store"):
        if os.stat(store).st_uid != os.geteuid():
            raise OSError(errno.ENODEV, "not the store's owner's: is it mounted?", store)


def known_entries(
    where: Namespace, user: str, uid: int, owner: str, *, quota: int = 0, newest: bool = False
) -> list[str]:
    """Return the entries that need not be harvested: the namespace has them, or they are blocked.

    `PublishBlocked` where nothing of that user or for that namespace is taken, `QuotaExceeded` where the scope has all
    it may have (`quota` in bytes, 0 is none). `newest`: what there is gets replaced, so only what is blocked counts.
    """
    with store_errors("read the index"):
        if quota:
            check_quota(where.store, where.scope, 1, quota)
        blocked = _unblocked(where, user, uid)
        return sorted(blocked if newest else index.read(where.path, owner).entries() | blocked)


def _unblocked(where: Namespace, user: str, uid: int) -> set[str]:
    """Return the entries that are blocked; `PublishBlocked` where the user or the namespace is."""
    blocked = blocklist.read(where.store)
    if blocked.user(user, uid):
        raise PublishBlocked(what=f"the user {user}")
    if blocked.namespace(where.profile, where.name):
        raise PublishBlocked(what=f"{where.profile}'s namespace {where.name}")
    return blocked.entries(where.profile)


def fetch(where: Namespace, bundle: str, sha256: str, size: int, fd: int) -> dict[str, dict[str, int]]:
    """Copy a bundle into the inherited, empty descriptor `fd`; return each entry's files, with mtimes in nanoseconds.

    What arrives is hashed on the way and must be what the manifest and the index both say: `BundleDamaged`
    otherwise, and what `fd` then holds is worthless. `BundleGone`, `ManifestUnreadable`, `StoreFailed`;
    `CopyFailed` is the node's disk.
    """
    if not layout.is_bundle_id(bundle):
        raise ValueError(f"not a bundle's id: {bundle!r}")
    with store_errors("fetch a bundle"):
        try:
            with opened_dir(where.path) as dir_fd:
                found = index.read_manifest(dir_fd, bundle)
                if (found.sha256, found.size) != (sha256, size):
                    raise BundleDamaged(bundle=bundle, problem="index and manifest disagree")
                source = open_regular(bundle + BUNDLE, dir_fd)
        except FileNotFoundError:
            raise BundleGone(bundle=bundle) from None
        try:
            _copy_verified(bundle, source, fd, sha256, size)
        finally:
            os.close(source)
    return {entry: {path: file.mtime_ns for path, file in files.items()} for entry, files in found.entries.items()}


def _copy_verified(bundle: str, source: int, fd: int, sha256: str, size: int) -> None:
    try:
        copied = copy_hashed(source, fd, most=size + 1)
    except ReadFailed:
        raise
    except OSError as error:
        raise CopyFailed(bundle=bundle, problem=error.strerror) from error
    if copied != (size, sha256):
        raise BundleDamaged(bundle=bundle, problem="its bytes are not those of its manifest")


def read_manifest(where: Namespace, bundle: str) -> Manifest:
    """Return a bundle's manifest; `ManifestUnreadable`, `BundleGone`, `StoreFailed`."""
    if not layout.is_bundle_id(bundle):
        raise BundleGone(bundle=bundle)
    with store_errors("read a manifest"):
        try:
            with opened_dir(where.path) as dir_fd:
                return index.read_manifest(dir_fd, bundle)
        except FileNotFoundError:
            raise BundleGone(bundle=bundle) from None


def publish_bundle(where: Namespace, fd: int, draft: Draft, owner: str, quota: int = 0) -> Published:
    """Publish the squashfs behind the inherited descriptor `fd`; readers see it whole or not at all.

    `owner` names whoever publishes in the names of temporary files (node and run id). `bundle` is None where others
    have published all its entries (or, where the newest wins, another newer one) meanwhile. `StoreFull`, `StoreFailed`:
    no reader sees anything of it, or (an error of the last directory sync) all of it. `QuotaExceeded` where the scope
    would have more than `quota` bytes then (0: no quota).
    """
    if quota:
        with store_errors("measure the scope"):
            check_quota(where.store, where.scope, os.fstat(fd).st_size, quota)
    with_id: _WithId = index.with_new_id
    if draft.based_on is not None:
        with store_errors("read what is blocked"):
            with_id = partial(index.with_id_over, blocklist.read(where.store), draft.based_on)
    return _publish(where, fd, draft, owner, with_id)


def publish_compacted(where: Namespace, fd: int, draft: Draft, owner: str) -> Published:
    """Publish what was made of other bundles, as old as the oldest of them; the same errors.

    `bundle` is None where one of those that it replaces is not there any more.
    """
    return _publish(where, fd, draft, owner, index.with_older_id)


def _publish(where: Namespace, fd: int, draft: Draft, owner: str, with_id: _WithId) -> Published:
    with store_errors("publish a bundle"):
        _unblocked(where, draft.producer.user, draft.producer.uid)
        dir_fd = layout.make_namespace(where)
        try:
            with temp_file(dir_fd, owner) as (temp, out):
                size, sha256 = copy_hashed(fd, out)
                os.fsync(out)  # before the lock is taken: it is the slow part
                found = Manifest("", sha256, size, 0.0, *where[1:], draft.producer, draft.facts, draft.entries)
                found = found._replace(origins=draft.origins, replaces=draft.replaces)
                with publish_lock(where.path):
                    identified = with_id(found, index.update(dir_fd, owner))
                    indexed = identified is not None and _link_and_list(dir_fd, owner, (temp, out), identified)
        finally:
            os.close(dir_fd)
    return Published(identified and identified.bundle, sha256, size, indexed)


def _link_and_list(dir_fd: int, owner: str, squashfs: tuple[str, int], found: Manifest) -> bool:
    """Make a bundle visible; return whether the index lists it."""
    with temp_file(dir_fd, owner) as (temp, fd):
        write_all(fd, manifest.encode(found))
        os.fsync(fd)  # before the first link: a store that fills up here has linked nothing
        for (name, file), suffix in ((squashfs, BUNDLE), ((temp, fd), MANIFEST)):
            if not publish(dir_fd, name, file, found.bundle + suffix):
                raise FileExistsError(errno.EEXIST, "another bundle has this id", found.bundle)
    try:
        index.update(dir_fd, owner)
    except OSError:
        return False
    return True


def reindex(where: Namespace, owner: str) -> Reindexed:
    """Make the index again from the manifests."""
    with store_errors("rebuild the index"), opened_dir(where.path) as dir_fd, publish_lock(where.path):
        made = index.rebuild(dir_fd, owner)
    return Reindexed(len(made.bundles), made.refused)


def quota(scope: str, rules: Maintenance) -> int:
    """Return how many bytes of bundles a scope (its directory's name) may have."""
    kind = scope.partition("-")[0]
    return {"user": rules.per_user, "account": rules.per_account}.get(kind, rules.per_site)


def check_quota(store: str, scope: str, more: int, most: int) -> None:
    """Raise `QuotaExceeded` where `more` bytes would take a scope beyond `most`; `OSError`.

    Two that publish at the same moment may both be let in.
    """
    used = 0
    for size in _sizes(os.path.join(store, ARTIFACTS, scope)):
        used += size
        if used + more > most:
            raise QuotaExceeded(scope=scope, used=used, quota=most, more=more)
    if more > most:
        raise QuotaExceeded(scope=scope, used=used, quota=most, more=more)


def _sizes(path: str) -> Iterator[int]:
    """Yield the sizes of a scope's bundles; what goes meanwhile, or is no name of ours, does not count."""
    for profile in _components(path):
        for name in _components(os.path.join(path, profile)):
            with suppress(FileNotFoundError, NotADirectoryError), opened_dir(os.path.join(path, profile, name)) as fd:
                for file in os.listdir(fd):
                    if file.endswith(BUNDLE) and is_bundle_id(file.removesuffix(BUNDLE)):
                        with suppress(FileNotFoundError):
                            yield os.stat(file, dir_fd=fd, follow_symlinks=False).st_size


def _components(path: str) -> list[str]:
    try:
        with opened_dir(path) as fd:
            return [name for name in os.listdir(fd) if is_component(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []

"""What the nodes of one run of a job hand in, until it is published as a whole (docs/adr/index.md, 41).

    <store>/parts/                                0700
        <uid>.<cluster>.<jobid>.<restarts>/       0700, one run of a job (of a component, if it is heterogeneous)
            <bundle>.sqsh  <bundle>.json          0444, a part: as a bundle, with what else a publisher knows of it
            <node>.done                           0444, says that this node hands in nothing more
            locks/merge                           held by who merges the parts (`repack.parts`)

A node hands in as many parts as it has profiles, or more if its harvest was interrupted. It may come late, or twice:
what is handed in after the others were merged is merged by itself. So nothing depends on the count of the nodes but
when a run is merged. A run whose job id comes again shares the directory; both are the same user's.

A part is there when its manifest is. Parts go when they are published, each with its manifest first, and only those
that were merged; the last one's remover takes the directory along. Runs as the store's owner.
"""

from __future__ import annotations

import os
import time

from warmstart.host import wire
from warmstart.host.files import (
    changed,
    closing,
    ensure_dir,
    open_regular,
    opened_dir,
    unlink_if_there,
    write_all,
)
from warmstart.host.wire import Json
from warmstart.lean import Iterator, NamedTuple, contextmanager, dumps, suppress
from warmstart.slurm.nodes import expand
from warmstart.store import board, bundles, index, layout, manifest
from warmstart.store.atomic import TEMP_PREFIX
from warmstart.store.bundles import BundleGone
from warmstart.store.layout import BUNDLE, LOCKS, MANIFEST, Namespace, is_bundle_id, is_component, store_errors
from warmstart.store.locks import HeldLock, try_lock
from warmstart.store.manifest import Base, Draft, Manifest, ManifestUnreadable, Producer

PARTS = "parts"
PATIENCE_S = 3600.0  # with nodes that hand in nothing: lost, or their runs wait to be harvested
KEPT_S = 86_400.0  # for parts that cannot be published
MOST_BYTES = 8 << 30  # of one run's parts: its nodes mostly make the same
# A job may have a thousand nodes that hand in at the same time, each of which looks at what is there.
_MOST_PARTS, _MOST_READ = 16, 8 << 20  # whose entries a node leaves out; bytes of their manifests
_MOST_LOOKED_AT = 64  # files of a run, to tell how many bytes it has
_LEFT_S = 86_400.0  # a file of a writer that died; longer than handing in takes
_DONE = ".done"
_LOCK = "merge"

_held: list[HeldLock] = []  # keeps locks until this process ends


class RunParts(NamedTuple):
    """Where the nodes of a run hand in."""

    store: str
    name: str  # `name_of`

    @property
    def path(self) -> str:
        """The directory; raises `ValueError` if the name is not one of `name_of`."""
        if not is_component(self.name):
            raise ValueError(f"not a run's name: {self.name!r}")
        return os.path.join(self.store, PARTS, self.name)


class Part(NamedTuple):
    """One part, as a listing has it."""

    bundle: str  # id
    producer: Producer
    where: Namespace


class Handed(NamedTuple):
    """One part as a whole."""

    manifest: Manifest
    based_on: dict[str, Base]  # as in `Draft`
    fresh: bool  # as in `Draft`


class Standing(NamedTuple):
    """How far the nodes of a run have come."""

    nodelist: str  # the job's nodes as a Slurm hostlist
    missing: list[str]  # nodes that may still hand in
    parts: int
    since: float  # when the first file came, in seconds since the epoch; 0 if nobody looked


class Listing(NamedTuple):
    """All parts of a run."""

    standing: Standing
    parts: list[Part]  # oldest first
    damaged: dict[str, str]  # id → problem, for parts whose manifests are unusable


def name_of(uid: int, cluster: str, job_id: int, restarts: int) -> str:
    """Return the name of a run's directory, which begins with the user's uid."""
    return f"{uid}.{board.run_of(cluster, job_id, restarts)}"


def hand_in(  # noqa: PLR0917 - as `bundles.publish_bundle`, and where to
    place: RunParts, where: Namespace, fd: int, draft: Draft, nodelist: str, writer: str, quota: int = 0
) -> str:
    """Hand in the squashfs of the inherited descriptor `fd`, to be published in the namespace `where`; return its id.

    `quota` of the scope is in bytes, 0 for none; all parts of the user count. Raises `HarvestTooLarge`,
    `QuotaExceeded`, `StoreFull` or `StoreFailed`.
    """
    from warmstart.host.files import copy_hashed
    from warmstart.store.atomic import temp_file

    with store_errors("hand in a part", place.path), _opened(place) as dir_fd:
        more = bundles.stored_size(bundles.described(where, draft, "0" * 64, os.fstat(fd).st_size))
        used = _size(dir_fd)
        if used + more > MOST_BYTES:
            bound = f"{more} more are above the bound of {MOST_BYTES}"
            raise index.HarvestTooLarge(problem=f"the nodes of the job have handed in {used} bytes; {bound}")
        if quota:
            bundles.check_quota(where.store, where.scope, more + _size_of_user(place.store, draft.producer.uid), quota)
        with temp_file(dir_fd, writer) as (temp, out):
            size, sha256 = copy_hashed(fd, out)
            os.fsync(out)
            now = time.time_ns() // 1000
            new = bundles.described(where, draft, sha256, size)
            new = new._replace(bundle=layout.bundle_id(now, sha256), created=now / 1e6)
            known = {"based_on": draft.based_on, "fresh": draft.fresh, "nodelist": nodelist}
            bundles.link(dir_fd, writer, (temp, out), new, known)
    return new.bundle


def finish(place: RunParts, writer: str, node: str, nodelist: str) -> Standing:
    """Say that a node hands in nothing more; return how far the run is. Without any part the last node clears up."""
    from warmstart.store.atomic import publish, temp_file

    with store_errors("finish handing in", place.path):
        with _opened(place) as dir_fd:
            with temp_file(dir_fd, writer) as (temp, out):
                write_all(out, dumps({"nodelist": nodelist}).encode())
                publish(dir_fd, temp, out, node + _DONE)
            names: list[str] = []
            with suppress(FileNotFoundError):
                names = _names(dir_fd)
        # Its word is gone if another of the last nodes has seen it, and has cleared up.
        standing = _standing(names, nodelist) if node + _DONE in names else Standing(nodelist, [], 0, 0.0)
        if not (standing.missing or standing.parts):
            remove(place, [])
    return standing


def entries(place: RunParts, where: Namespace) -> list[str]:
    """Return the entries of a namespace that nodes of the run have handed in first: mostly all make the same."""
    handed: set[str] = set()
    read = 0
    with store_errors("read parts", place.path), suppress(FileNotFoundError), opened_dir(place.path) as dir_fd:
        for bundle in _bundles(_names(dir_fd))[:_MOST_PARTS]:
            with suppress(FileNotFoundError, ManifestUnreadable):
                read += os.stat(bundle + MANIFEST, dir_fd=dir_fd, follow_symlinks=False).st_size
                if read > _MOST_READ:
                    break
                part = index.read_manifest(dir_fd, bundle)
                if part_namespace(place, part) == where:
                    handed.update(part.entries)
    return sorted(handed)


def due(store: str, now: float) -> list[str]:
    """Return the names of runs to merge: those of which all nodes have handed in, or of which the first did long ago.

    A directory that cannot be read keeps no other.
    """
    names = []
    with store_errors("list parts"), suppress(FileNotFoundError), opened_dir(os.path.join(store, PARTS)) as fd:
        for name in sorted(filter(is_component, os.listdir(fd))):
            with suppress(OSError):
                standing = look(RunParts(store, name))
                if standing and is_due(standing, now):
                    names.append(name)
    return names


def is_due(standing: Standing, now: float) -> bool:
    """Return whether a run is to be merged: nothing more comes soon."""
    return (not standing.missing and bool(standing.nodelist)) or standing.since < now - PATIENCE_S


def look(place: RunParts) -> Standing | None:
    """Return how far a run is; None if nothing of it is there. Raises `OSError`."""
    try:
        with opened_dir(place.path) as dir_fd:
            names = _names(dir_fd)
            return _standing(names, _nodelist(dir_fd, names), _since(dir_fd, names))
    except FileNotFoundError:
        return None


def listing(place: RunParts) -> Listing | None:
    """Return all parts of a run; None if nothing of it is there."""
    with store_errors("list parts", place.path):
        try:
            with opened_dir(place.path) as dir_fd:
                names = _names(dir_fd)
                parts, damaged = [], {}
                for bundle in _bundles(names):
                    try:
                        part = index.read_manifest(dir_fd, bundle)
                        parts.append(Part(bundle, part.producer, part_namespace(place, part)))
                    except ManifestUnreadable as error:
                        damaged[bundle] = str(error.fields["problem"])
                standing = _standing(names, _nodelist(dir_fd, names), _since(dir_fd, names))
                return Listing(standing, parts, damaged)
        except FileNotFoundError:
            return None


def labels(name: str) -> dict[str, object]:
    """Return what the name of a run's directory tells of its job, for `Log.for_job`."""
    uid, _, rest = name.partition(".")
    known = {"uid": uid, "job_id": rest.split(".")[-2:][0]}
    return {key: int(word) for key, word in known.items() if word.isdecimal()}


def part_namespace(place: RunParts, part: Manifest) -> Namespace:
    """Return the namespace that a part is to be published in."""
    return Namespace(place.store, part.scope, part.profile, part.namespace)


def read(place: RunParts, bundle: str) -> Handed:
    """Return a part; raises `ManifestUnreadable` or `BundleGone`."""
    if not is_bundle_id(bundle):
        raise BundleGone(bundle=bundle)
    with store_errors("read a part", place.path):
        try:
            with opened_dir(place.path) as dir_fd:
                raw = _raw(dir_fd, bundle + MANIFEST)
                based_on = wire.decode(dict[str, Base], raw.get("based_on"))
                return Handed(index.read_manifest(dir_fd, bundle), based_on, raw.get("fresh") is True)
        except FileNotFoundError:
            raise BundleGone(bundle=bundle) from None
        except (ValueError, AttributeError) as error:
            raise ManifestUnreadable(bundle=bundle, problem=f"not a part: {error!r:.200}") from error


def fetch(place: RunParts, bundle: str, sha256: str, size: int, fd: int) -> None:
    """Copy a part's squashfs into the inherited descriptor `fd`. Raises `BundleDamaged` or `BundleGone`."""
    if not is_bundle_id(bundle):
        raise ValueError(f"not a bundle's id: {bundle!r}")
    with store_errors("fetch a part", place.path):
        try:
            with opened_dir(place.path) as dir_fd:
                source = open_regular(bundle + BUNDLE, dir_fd)
        except FileNotFoundError:
            raise BundleGone(bundle=bundle) from None
        try:
            bundles.copy_verified(bundle, source, fd, sha256, size)
        finally:
            os.close(source)


def remove(place: RunParts, merged: list[str]) -> None:
    """Remove parts, and the run's directory if no other part is there."""
    with store_errors("remove parts", place.path), suppress(FileNotFoundError):
        with opened_dir(place.path) as dir_fd:
            for bundle in filter(is_bundle_id, merged):
                unlink_if_there(bundle + MANIFEST, dir_fd)
                unlink_if_there(bundle + BUNDLE, dir_fd)
            names = _names(dir_fd)
            if _bundles(names):
                return
            for name in names:
                if name.endswith(_DONE) or _is_left_over(dir_fd, name):
                    unlink_if_there(name, dir_fd)
        unlock(place)


def unlock(place: RunParts) -> None:
    """Remove the lock's directory if the run has nothing else, and the run's; once more when the lock is released.

    NFS keeps the name of a file that is open, under another name, until it is closed.
    """
    with suppress(OSError):  # not empty: a node is handing in, or the lock is held
        with opened_dir(place.path) as dir_fd:
            if _names(dir_fd) == [LOCKS]:
                with opened_dir(LOCKS, dir_fd) as locks_fd:
                    unlink_if_there(_LOCK, locks_fd)
                os.rmdir(LOCKS, dir_fd=dir_fd)
        os.rmdir(place.path)


def lock(place: RunParts) -> bool:
    """Take the lock of who merges a run until this process ends; return False if it is held, or the run is gone."""
    with store_errors("lock parts"):
        try:
            held = try_lock(os.path.join(place.path, LOCKS), _LOCK)
        except FileNotFoundError:
            return False
    if held is not None:
        _held.append(held)
    return held is not None


@contextmanager
def _opened(place: RunParts) -> Iterator[int]:
    """Open a run's directory, which is made if it is missing; never the store, which is then not mounted."""
    with closing(os.open(place.store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        ensure_dir(PARTS, 0o700, fd)
        with opened_dir(PARTS, fd) as parts:
            ensure_dir(os.path.basename(place.path), 0o700, parts)
            with opened_dir(place.name, parts) as run:
                yield run


def _names(dir_fd: int) -> list[str]:
    """List a run's directory. It is opened again, because only then NFS revalidates its listing."""
    with opened_dir(".", dir_fd) as fd:
        return sorted(os.listdir(fd))


def _bundles(names: list[str]) -> list[str]:
    stems = (name.removesuffix(MANIFEST) for name in names if name.endswith(MANIFEST))
    return [stem for stem in stems if is_bundle_id(stem)]


def _since(dir_fd: int, names: list[str]) -> float:
    return min(changed(name, dir_fd) for name in [*names, "."] if name != LOCKS)


def _standing(names: list[str], nodelist: str, since: float = 0.0) -> Standing:
    done = {name.removesuffix(_DONE) for name in names if name.endswith(_DONE)}
    missing = [] if not nodelist else sorted({*expand(nodelist)} - done)
    return Standing(nodelist, missing, len(_bundles(names)), since)


def _nodelist(dir_fd: int, names: list[str]) -> str:
    """Return the job's nodes, as the first file says that can be read; "" if none can."""
    for name in [*(name for name in names if name.endswith(_DONE)), *_bundles(names)]:
        with suppress(OSError, ValueError, AttributeError, ManifestUnreadable):
            raw = _raw(dir_fd, name if name.endswith(_DONE) else name + MANIFEST)
            nodelist: str = wire.decode(str, raw.get("nodelist"))
            expand(nodelist)
            return nodelist
    return ""


def _raw(dir_fd: int, name: str) -> Json:
    return wire.parse(index.read_whole(name, manifest.LARGEST, dir_fd))


def _size_of_user(store: str, uid: int) -> int:
    """Return the bytes of all parts of a user, in every run."""
    size = 0
    with opened_dir(os.path.join(store, PARTS)) as fd:
        for name in os.listdir(fd):
            if name.startswith(f"{uid}."):
                with suppress(OSError), opened_dir(name, fd) as dir_fd:
                    size += _size(dir_fd)
    return size


def _size(dir_fd: int) -> int:
    """Return the bytes of a run's files; of many files an estimate, by some of them."""
    import random

    names = os.listdir(dir_fd)
    looked_at = random.sample(names, min(len(names), _MOST_LOOKED_AT))
    size = 0
    for name in looked_at:
        with suppress(FileNotFoundError):
            size += os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_size
    return size * len(names) // max(1, len(looked_at))


def _is_left_over(dir_fd: int, name: str) -> bool:
    """Return whether a file is what a writer left that died long ago."""
    stem, suffix = os.path.splitext(name)
    is_ours = name.startswith(TEMP_PREFIX) or (suffix == BUNDLE and is_bundle_id(stem))
    return is_ours and changed(name, dir_fd) < time.time() - _LEFT_S

"""Space in the image store: inventory, quotas, watermarks, eviction. Runs as the store's owner.

Evicts least recently used images; never one that is pinned, or that a node used within the lease. Eviction hides an
image by a rename, reads its uses again, and then removes it. A hook records its use and then looks the image up
again. So at least one of the two notices the other.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from warmstart.errors import UserError
from warmstart.host.files import changed, read_small, unlink_if_there
from warmstart.images.store import uses
from warmstart.images.store.layout import (
    IMAGE,
    IMAGES,
    LOCKS,
    LONGEST_POINTER,
    META,
    PINNED,
    PRIVATE_STORES,
    TAGS,
    Charged,
    digest_of,
    parse_pointer,
    reference_of,
)
from warmstart.images.store.published import (
    DAMAGED,
    FAILURES_KEPT_S,
    forget_dead,
    forget_failures,
    opened_folder,
    read_metadata,
    remove_metadata,
    sweep_all,
)
from warmstart.policy.keys import Keep
from warmstart.policy.units import format_size
from warmstart.store.atomic import replace
from warmstart.store.locks import lock_or_proceed

OUT_OF_SIGHT = ".evicted-"
LOCK = "evict.lock"
PATIENCE_S = 60.0  # with another process that makes room; two at once are safe, but may evict more than they need
FLOOR_PERCENT = 2  # of the store's file system that no import may use
USER_PERCENT = 50  # of the store's file system that images imported for one user's jobs may take
NEW_S = 3600.0  # a new image is protected that long: its producer may not have recorded a use yet


class ImageQuotaExceeded(UserError):
    """The images imported for a user's jobs take up that user's share of the store, and all are in use."""

    code = "image-quota-exceeded"
    template = "image of {bytes} bytes refused: the images of {user} take {taken} of {quota} bytes, all still in use"
    hint = "use fewer different images; images that no job has used for a while are evicted by themselves"


class Room(NamedTuple):
    """A store to evict from, and what protects its images."""

    store: str
    lease: float  # seconds for which a use protects an image


class ImageEntry(NamedTuple):
    """An image in the store; the fields from `reference` on come from its metadata, "" or -1 if unknown.

    Only the store's owner knows them, and `nodes`.
    """

    name: str
    path: str
    bytes: int
    published: float  # seconds since the epoch, like `last_use`
    last_use: float
    nodes: list[str]  # that used it within the lease
    protected: str  # "pinned" | "in use" | "new" | ""
    digest: str
    reference: str
    importer: str
    user: str
    sha256: str
    uid: int
    private: str  # its store of private images, "" for the shared one; set by callers that list all stores
    tags: list[str]  # references that mean it now; set by callers that list all stores
    store: str


def make_room(store: str, need: int, keep: Keep, charged: Charged) -> list[str]:
    """Evict images to make room for `need` bytes; return the names of those that were evicted.

    Raises `ImageQuotaExceeded`, and `OSError` (ENOSPC) if less than `FLOOR_PERCENT` would be left free.
    """
    room = Room(store, keep.lease)
    there = _There(room)
    with lock_or_proceed(f"{store}/{IMAGES}/{LOCKS}", LOCK, PATIENCE_S):  # another process may be making room
        _finish(room)
        if charged.uid != -1:
            _within_quota(there, need, charged)
        _below_watermark(there, need, keep)
    _check_floor(store, need)
    return there.gone


class _There:
    """The images of a store; they are listed once, if anybody asks."""

    def __init__(self, room: Room) -> None:
        self.store = room.store
        self.gone: list[str] = []  # names of those that were evicted
        self._room = room
        self._images: list[ImageEntry] | None = None

    def images(self) -> list[ImageEntry]:
        """Return the images that are left, the least recently used first."""
        if self._images is None:
            self._images = inventory(self.store, self._room.lease)
        return [image for image in self._images if image.name not in self.gone]

    def evict_until(self, images: Iterable[ImageEntry], wanted: int) -> int:
        """Evict images until `wanted` bytes are freed; return how many are."""
        freed = 0
        for image in images:
            if freed >= wanted:
                break
            if not image.protected and evict(self.store, image.name, self._room.lease):
                self.gone.append(image.name)
                freed += image.bytes
        return freed


def _finish(room: Room) -> None:
    """Clean up after dead producers and finish interrupted evictions. The caller holds the eviction lock."""
    sweep_all(room.store)
    forget_dead(room.store)
    forget_failures(room.store, FAILURES_KEPT_S)
    with opened_folder(room.store) as images:
        names, before = os.listdir(images), time.time() - room.lease
        for name in names:
            if name.startswith(DAMAGED) and changed(name, images) < before:  # no job has it open any more
                unlink_if_there(name, images)
    for name in names:
        if name.startswith(OUT_OF_SIGHT):
            _remove_hidden(room, name.removeprefix(OUT_OF_SIGHT).removesuffix(IMAGE))


def _within_quota(there: _There, need: int, charged: Charged) -> None:
    capacity, free = _space(there.store)
    quota = capacity * USER_PERCENT // 100
    if capacity - free + need <= quota:
        return
    theirs = [image for image in there.images() if image.uid == charged.uid]
    taken = sum(image.bytes for image in theirs)
    taken -= there.evict_until(theirs, taken + need - quota)
    if taken + need > quota:
        raise ImageQuotaExceeded(bytes=need, user=charged.user, taken=taken, quota=quota)


def _below_watermark(there: _There, need: int, keep: Keep) -> None:
    capacity, free = _space(there.store)
    used = capacity - free + need
    if used > capacity * keep.high // 100:
        there.evict_until(there.images(), used - capacity * keep.low // 100)


def _check_floor(store: str, need: int) -> None:
    """Raise `OSError` (ENOSPC) if less than `FLOOR_PERCENT` would be free after writing `need` bytes."""
    capacity, free = _space(store)
    least = capacity * FLOOR_PERCENT // 100
    disk = os.statvfs(store)
    if disk.f_files and not disk.f_favail:
        raise OSError(errno.ENOSPC, f"the file system of {store} has no inode left")
    if free - need < least:
        wanted = f"the image has {format_size(need)}, and " if need else ""
        raise OSError(
            errno.ENOSPC,
            f"the file system of {store} has {format_size(free)} free; {wanted}{format_size(least)} must stay free",
        )


def _space(store: str) -> tuple[int, int]:
    """Return capacity and free space of the file system for unprivileged users, in bytes."""
    disk = os.statvfs(store)
    free = disk.f_bavail * disk.f_frsize
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize + free, free


def evict(store: str, name: str, lease: float, forced: bool = False) -> bool:
    """Remove one image; False if it is missing, or protected and not `forced`. `lease` in seconds."""
    image = describe(store, name, lease)
    if image is None or (image.protected and not forced):
        return False
    with opened_folder(store) as images:
        try:
            os.rename(name + IMAGE, OUT_OF_SIGHT + name + IMAGE, src_dir_fd=images, dst_dir_fd=images)
        except FileNotFoundError:
            return False
    return _remove_hidden(Room(store, 0.0 if forced else lease), name)


def _remove_hidden(room: Room, name: str) -> bool:
    """Remove a hidden image; put it back and return False if a node has used it meanwhile."""
    hidden = OUT_OF_SIGHT + name + IMAGE
    now = time.time()
    is_back = any(now - at < uses.lease_of(use, room.lease) for use, at in uses.last(room.store, name).items())
    with opened_folder(room.store) as images:
        if is_back:
            with suppress(FileExistsError):  # imported again meanwhile
                os.link(hidden, name + IMAGE, src_dir_fd=images, dst_dir_fd=images, follow_symlinks=False)
            unlink_if_there(hidden, images)
            return False
        if not os.path.exists(os.path.join(room.store, IMAGES, name + IMAGE)):
            remove_metadata(images, name, hidden)
        unlink_if_there(hidden, images)
    return True


def pin(store: str, name: str, writer: str) -> None:
    """Protect an image from eviction until `unpin`."""
    with opened_folder(store, PINNED) as folder:
        replace(folder, writer, name, b"")


def unpin(store: str, name: str) -> bool:
    """Make a pinned image evictable again; False if it was not pinned."""
    with opened_folder(store, PINNED) as folder:
        return unlink_if_there(name, folder)


def stores(store: str) -> list[str]:
    """Return the paths of the store and its stores of private images (private.py), without those with no images."""
    private = os.path.join(store, PRIVATE_STORES)
    names = sorted(os.listdir(private)) if os.path.isdir(private) else []
    return [path for path in (store, *(os.path.join(private, name) for name in names)) if _has_images(path)]


def _has_images(store: str) -> bool:
    return os.path.isdir(os.path.join(store, IMAGES))


def inventory(store: str, lease: float) -> list[ImageEntry]:
    """Return all images of the store, the least recently used first. `lease` in seconds."""
    folder = os.path.join(store, IMAGES)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        if not os.path.isdir(store):
            raise
        return []  # nothing was ever imported
    entries = (describe(store, name.removesuffix(IMAGE), lease) for name in names if _is_image(name))
    return sorted((entry for entry in entries if entry), key=lambda entry: entry.last_use)


def describe(store: str, name: str, lease: float) -> ImageEntry | None:
    """Return one image as `inventory` does; None if it is missing."""
    path = os.path.join(store, IMAGES, name)
    try:
        status = os.stat(path + IMAGE, follow_symlinks=False)
    except FileNotFoundError:
        return None
    known = read_metadata(path + META)
    known_uses = uses.last(store, name)
    now = time.time()
    current = [use for use, at in known_uses.items() if now - at < uses.lease_of(use, lease)]
    is_pinned = os.path.exists(os.path.join(store, IMAGES, PINNED, name))
    is_new = now - status.st_mtime < NEW_S
    published, uid = known.get("published"), known.get("uid")
    return ImageEntry(
        name=name,
        path=path + IMAGE,
        bytes=status.st_size,
        published=float(published) if isinstance(published, (int, float)) else status.st_mtime,
        last_use=max([*known_uses.values(), status.st_mtime]),
        nodes=sorted({uses.node_of(use) for use in current} - {""}),
        protected="pinned" if is_pinned else "in use" if current else "new" if is_new else "",
        uid=uid if isinstance(uid, int) else -1,
        private="",
        tags=[],
        store=store,
        digest=digest_of(name),
        **{key: str(known.get(key, "")) for key in ("reference", "importer", "user", "sha256")},
    )


def tags(store: str) -> dict[str, list[str]]:
    """Return the references by tag that have been resolved, by the digest that each had last."""
    folder = os.path.join(store, IMAGES, TAGS)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(META) and not name.startswith("."))
    except FileNotFoundError:
        return {}
    references: dict[str, list[str]] = {}
    for name in names:
        try:
            pointer = parse_pointer(read_small(os.path.join(folder, name), LONGEST_POINTER))
        except (FileNotFoundError, ValueError):  # replaced meanwhile, or not written by `published.point`
            continue
        if pointer is not None:
            references.setdefault(pointer.digest, []).append(reference_of(name.removesuffix(META)))
    return references


def _is_image(name: str) -> bool:
    return name.endswith(IMAGE) and not name.startswith(".")

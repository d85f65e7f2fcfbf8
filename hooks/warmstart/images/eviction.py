"""Room in the store: quotas, watermarks, and which image goes first. Runs as the store's owner, in the worker.

Only what no node has used within the lease goes, and nothing that is pinned. An image is first taken out of sight by a
rename, then its marks are read again, then it goes: a hook marks its use first and looks again afterwards
(flight.py), so one of the two always notices the other.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from warmstart.errors import UserError
from warmstart.host.files import unlink_if_there
from warmstart.images import election, launchers, uses
from warmstart.images.inventory import PINNED, ImageEntry, describe, inventory
from warmstart.images.layout import IMAGE, IMAGES, META, PRIVATE_STORES, Charged
from warmstart.images.published import opened_folder, sweep_all
from warmstart.policy.compiled import Keep
from warmstart.store.locks import try_lock
from warmstart.store.publish import replace

OUT_OF_SIGHT = ".evicted-"
CHECKED = "checked"
LOCK = "evict.lock"


class ImageQuotaExceeded(UserError):
    """The images that the user's or the account's jobs brought in take all that the policy gives them."""

    code = "image-quota-exceeded"
    template = "image of {bytes} bytes refused: the images of {whose} take {taken} of {quota} bytes, all still in use"
    hint = "use fewer different images; those that no job has used for a while make room by themselves"


class Room(NamedTuple):
    """Where images go from, and what every eviction has to know."""

    store: str
    lease: float  # seconds for which a mark protects
    names: str  # directory of the launchers' links, "" for none


def make_room(store: str, need: int, keep: Keep, charged: Charged, names: str) -> list[str]:
    """Evict what has to go before `need` bytes come; returns the names of the images that went.

    Raises `ImageQuotaExceeded`, and `OSError` (ENOSPC) if less than the floor would be left.
    """
    room = Room(store, keep.lease, names)
    with opened_folder(store, "locks", 0o700):
        held = try_lock(f"{store}/{IMAGES}/locks", LOCK)
    gone: list[str] = []
    if held is not None:  # else somebody else is making room
        try:
            _finish(room)
            if keep.user and charged.uid != -1:
                gone += _within_quota(room, need, keep.user, charged.user, lambda image: image.uid == charged.uid)
            if keep.account and charged.account:
                whose = f"account {charged.account}"
                gone += _within_quota(room, need, keep.account, whose, lambda image: image.account == charged.account)
            gone += _below_watermark(room, need, keep)
        finally:
            held.release()
    check_floor(store, need, keep.floor)
    return gone


def stores(store: str) -> list[str]:
    """Return the store and, below it, those of private images (private.py), where images lie."""
    private = os.path.join(store, PRIVATE_STORES)
    names = sorted(os.listdir(private)) if os.path.isdir(private) else []
    return [place for place in (store, *(os.path.join(private, name) for name in names)) if _has_images(place)]


def evict(store: str, name: str, lease: float, names: str, forced: bool = False) -> bool:
    """Remove one image; False if it is not there, or protected and not `forced`."""
    found = describe(store, name, lease)
    if found is None or (found.protected and not forced):
        return False
    with opened_folder(store) as images:
        try:
            os.rename(name + IMAGE, OUT_OF_SIGHT + name + IMAGE, src_dir_fd=images, dst_dir_fd=images)
        except FileNotFoundError:
            return False
    return _remove_hidden(Room(store, 0.0 if forced else lease, names), name)


def pin(store: str, name: str, owner: str) -> None:
    """Keep an image whatever happens, until `unpin`."""
    with opened_folder(store, PINNED) as folder:
        replace(folder, owner, name, b"")


def unpin(store: str, name: str) -> bool:
    """Let an image go when its time comes; False if it was not pinned."""
    with opened_folder(store, PINNED) as folder:
        return unlink_if_there(name, folder)


def check_floor(store: str, need: int, floor: int) -> None:
    """Raise `OSError` (ENOSPC) if less than `floor` percent would be left beside `need` bytes."""
    capacity, free = _space(store)
    if free - need < capacity * floor // 100:
        raise OSError(errno.ENOSPC, f"{free} bytes are free, {need} are needed and {floor}% of {capacity} stay free")


def _within_quota(room: Room, need: int, limit: int, whose: str, is_theirs: Callable[[ImageEntry], bool]) -> list[str]:
    theirs = [image for image in inventory(room.store, room.lease) if is_theirs(image)]
    taken = sum(image.bytes for image in theirs)
    gone, freed = _evict_until(room, theirs, taken + need - limit)
    if taken + need - freed > limit:
        raise ImageQuotaExceeded(bytes=need, whose=whose, taken=taken - freed, quota=limit)
    return gone


def _below_watermark(room: Room, need: int, keep: Keep) -> list[str]:
    capacity, free = _space(room.store)
    used = capacity - free + need
    if used <= capacity * keep.high // 100:
        return []
    images = inventory(room.store, room.lease)
    order = sorted(images, key=_over_quota(images, keep), reverse=True)  # stable: least recently used first
    return _evict_until(room, order, used - capacity * keep.low // 100)[0]


def _over_quota(images: Iterable[ImageEntry], keep: Keep) -> Callable[[ImageEntry], bool]:
    users: dict[int, int] = {}
    accounts: dict[str, int] = {}
    for image in images:
        users[image.uid] = users.get(image.uid, 0) + image.bytes
        accounts[image.account] = accounts.get(image.account, 0) + image.bytes

    def is_over(image: ImageEntry) -> bool:
        by_user = image.uid != -1 and 0 < keep.user < users[image.uid]
        by_account = image.account != "" and 0 < keep.account < accounts[image.account]
        return by_user or by_account

    return is_over


def _evict_until(room: Room, images: Iterable[ImageEntry], wanted: int) -> tuple[list[str], int]:
    gone: list[str] = []
    freed = 0
    for image in images:
        if freed >= wanted:
            break
        if not image.protected and evict(room.store, image.name, room.lease, room.names):
            gone.append(image.name)
            freed += image.bytes
    return gone, freed


def _remove_hidden(room: Room, name: str) -> bool:
    """Remove what is out of sight, or put it back if a node marked it meanwhile."""
    hidden = OUT_OF_SIGHT + name + IMAGE
    is_back = any(time.time() - at < room.lease for at in uses.last(room.store, name).values())
    with opened_folder(room.store) as images:
        if is_back:
            with suppress(FileExistsError):  # imported again meanwhile
                os.link(hidden, name + IMAGE, src_dir_fd=images, dst_dir_fd=images, follow_symlinks=False)
            unlink_if_there(hidden, images)
            return False
        if not os.path.exists(os.path.join(room.store, IMAGES, name + IMAGE)):
            unlink_if_there(name + META, images)
        unlink_if_there(hidden, images)
    with opened_folder(room.store, CHECKED) as folder:
        unlink_if_there(name + META, folder)
    if room.names:
        launchers.unlink(room.names, os.path.join(room.store, IMAGES, name + IMAGE))
    return True


def _has_images(store: str) -> bool:
    return os.path.isdir(os.path.join(store, IMAGES))


def _finish(room: Room) -> None:
    """End what producers and evictions that died have begun; the evictions' lock is held."""
    sweep_all(room.store)
    election.forget_dead(room.store)
    with opened_folder(room.store) as images:
        found = [name for name in os.listdir(images) if name.startswith(OUT_OF_SIGHT)]
    for name in found:
        _remove_hidden(room, name.removeprefix(OUT_OF_SIGHT).removesuffix(IMAGE))


def _space(store: str) -> tuple[int, int]:
    """Return what the file system holds for ordinary users, and what of it is free; bytes."""
    found = os.statvfs(store)
    free = found.f_bavail * found.f_frsize
    return (found.f_blocks - found.f_bfree) * found.f_frsize + free, free

"""Publish an image, elect its producer, and remember failed imports. Runs as the store's owner.

Publishing: copy to a temporary file beside the final name while hashing → check the copy's superblock → fsync → link
→ write its metadata → write the tag's pointer. A crash between any two leaves a temporary file, or an image without a
pointer; the next import continues from there.

Election: the producer holds the image's lock, which belongs to its store process: the kernel releases it when that
dies. The lock saves work and decides nothing else, since publishing tolerates two producers. `<key>.producer` only
informs waiters.

Failures: a negative cache of definitive import failures, so that N waiters do not ask the registry one after another.
It keeps only what is the same for everybody: what a registry said for sure (no such image, no access), and an image
larger than the policy allows. Shared images are requested without credentials and private ones have stores of their
own, so one user's 401 is nobody else's.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart.errors import UserError, by_code
from warmstart.host.files import (
    DIRECTORY,
    REGULAR,
    ReadFailed,
    copy,
    copy_hashed,
    ensure_dir,
    open_regular,
    opened_dir,
    read_small,
    unlink_if_there,
)
from warmstart.images.layout import (
    CLOCK_SKEW,
    IMAGE,
    IMAGES,
    LONGEST_POINTER,
    META,
    PRIVATE_STORES,
    TAGS,
    Charged,
    Pointer,
    parse_pointer,
    what_is_wrong,
)
from warmstart.images.squashfs import ImageInvalid
from warmstart.store.atomic import TEMP_PREFIX, publish, replace, temp_file
from warmstart.store.locks import Held, try_lock

QUARANTINE = "quarantine"
FOLDERS = (TAGS, "locks", "failed", "pinned", "checked", QUARANTINE)
OWNERS_ALONE = frozenset({"locks", QUARANTINE})
FORMAT = 1
# A temp of a live producer is written to all the time; where two mounts share no locks, an age protects it.
ABANDONED_S = 60.0
LOCKS = "locks"
PRODUCER = ".producer"
LONGEST_CLAIM = 4096
LONGEST_WORD = 80

_held: dict[str, Held] = {}
FAILED = "failed"
DEFINITIVE = frozenset({"image-not-found", "image-forbidden", "image-too-large"})
LONGEST_FAILURE = 16384


class Draft(NamedTuple):
    """What is known of an image before it is published."""

    digest: str
    reference: str  # canonical
    kind: str  # machine and recipe
    importer: str
    published: float  # seconds since the epoch
    node: str
    job_id: int
    charged: Charged


class Published(NamedTuple):
    """What publishing has found out."""

    size: int
    sha256: str
    first: bool  # False: another publisher was faster, and its image stays


@contextmanager
def opened_folder(store: str, name: str = "", mode: int = 0o755) -> Iterator[int]:
    """Open `images/` or a folder in it, made where it lacks; never the store itself.

    A store that is not there is mostly a file system that is not mounted: `FileNotFoundError`.
    """
    store_fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ensure_dir(IMAGES, 0o755, store_fd)
        images = os.open(IMAGES, DIRECTORY, dir_fd=store_fd)
    finally:
        os.close(store_fd)
    try:
        if not name:
            yield images
            return
        ensure_dir(name, mode, images)
        with opened_dir(name, images) as folder:
            yield folder
    finally:
        os.close(images)


def publish_image(store: str, fd: int, name: str, draft: Draft, owner: str) -> Published:
    """Copy an open local image to an inode of the store's own, and make that one visible.

    `fd` is inherited, and nobody else can write its inode any more (possession.py); `name` is `image_name`'s.
    `draft` is kept beside the image, with `size` and `sha256` added; `owner` names the temp (`temp_owner`).
    `OSError` when the store is full, and nothing is left there then.
    """
    size = os.fstat(fd).st_size
    with opened_folder(store) as images:
        _check_space(images, size)
        with temp_file(images, owner) as (temp, copy):
            sha256 = _copy(fd, copy, size)
            problem = what_is_wrong(copy, os.fstat(copy))
            if problem:
                raise ImageInvalid(problem=problem)
            first = publish(images, temp, copy, name + IMAGE)
        if first:
            known = {"format": FORMAT, **draft._asdict(), **draft.charged._asdict(), "size": size, "sha256": sha256}
            del known["charged"]
            replace(images, owner, name + META, json.dumps(known).encode())
    return Published(size, sha256, first)


def point(store: str, key: str, digest: str, resolved: float, owner: str) -> None:
    """Write down which digest a tag had at `resolved`, seconds since the epoch."""
    _point(store, key, Pointer(digest, resolved), owner)


def point_unanswered(store: str, key: str, owner: str) -> None:
    """Write down that the registry was asked about a tag just now, in vain."""
    known = last_pointer(store, key)
    if known is not None:
        _point(store, key, known._replace(unanswered=time.time()), owner)


def last_pointer(store: str, key: str) -> Pointer | None:
    """Return what is known of a tag, however old; None if nothing is."""
    with opened_folder(store, TAGS) as tags:
        try:
            return parse_pointer(read_small(key + META, LONGEST_POINTER, tags))
        except (FileNotFoundError, ValueError):
            return None


def quarantine(store: str, name: str, reason: str, inode: int = 0) -> bool:
    """Quarantine an image that is not whole, for somebody to look at; False if there was none.

    A job that has it open or mounted keeps its inode. If another node had replaced it by a good one
    meanwhile, that one goes back: one with another inode than `inode`, or, without that, with a good superblock.
    """
    aside = f"{name}.{time.time_ns()}"
    with opened_folder(store) as images, opened_folder(store, QUARANTINE, 0o700) as folder:
        try:
            os.rename(name + IMAGE, aside + IMAGE, src_dir_fd=images, dst_dir_fd=folder)
        except FileNotFoundError:
            return False
        if _is_another(folder, aside + IMAGE, inode):
            with suppress(FileExistsError):
                os.link(aside + IMAGE, name + IMAGE, src_dir_fd=folder, dst_dir_fd=images, follow_symlinks=False)
            os.unlink(aside + IMAGE, dir_fd=folder)
            return False
        with suppress(FileNotFoundError):
            os.rename(name + META, aside + META, src_dir_fd=images, dst_dir_fd=folder)
        replace(folder, "quarantine", f"{aside}.reason", reason.encode())
    return True


def ensure_private(store: str, name: str) -> None:
    """Make the store of the private images `name` (private.py); the store itself is never made."""
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ensure_dir(PRIVATE_STORES, 0o700, fd)
        with opened_dir(PRIVATE_STORES, fd) as private:
            ensure_dir(name, 0o700, private)
    finally:
        os.close(fd)


def copy_out(path: str, target: int) -> str:
    """Copy an image into an open file; returns what is wrong with the target's disk, "" if nothing."""
    source = open_regular(path)
    try:
        copy(source, target)
    except ReadFailed:
        raise
    except OSError as error:
        return error.strerror or "write failed"
    finally:
        os.close(source)
    return ""


def temp_owner(key: str, node: str, run_id: str) -> str:
    """Return the part of a temp's name that tells for which reference, and by whom, it is made."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.{node}.{run_id}"


def sweep(store: str, key: str) -> int:
    """Remove what dead producers of this reference left half copied; its lock is held. Returns how many."""
    prefix = f"{TEMP_PREFIX}{temp_owner(key, '', '').rstrip('.')}."
    swept = 0
    with opened_folder(store) as images:
        for name in os.listdir(images):
            if name.startswith(prefix) and _age(images, name) > ABANDONED_S:
                swept += unlink_if_there(name, images)
    return swept


def sweep_all(store: str) -> int:
    """Remove every temp that no live producer writes to any more; returns how many there were."""
    swept = 0
    for folder in ("", *FOLDERS):
        with opened_folder(store, folder, 0o700 if folder in OWNERS_ALONE else 0o755) as opened:
            for name in os.listdir(opened):
                if name.startswith(TEMP_PREFIX) and _age(opened, name) > ABANDONED_S:
                    swept += unlink_if_there(name, opened)
    return swept


def _point(store: str, key: str, pointer: Pointer, owner: str) -> None:
    said = {"format": FORMAT, **pointer._asdict()}
    if not pointer.unanswered:
        del said["unanswered"]
    with opened_folder(store, TAGS) as tags:
        replace(tags, owner, key + META, json.dumps(said).encode())


def _copy(source: int, target: int, size: int) -> str:
    copied = copy_hashed(source, target)
    if copied.size != size:
        raise ImageInvalid(problem=f"{copied.size} bytes were there where {size} should be")
    return copied.sha256


def _check_space(images: int, size: int) -> None:
    # Fails before minutes of copying, not after them; a quota may still end the copy.
    space = os.fstatvfs(images)
    if space.f_bavail * space.f_frsize < size:
        raise OSError(errno.ENOSPC, f"the image has {size} bytes, {space.f_bavail * space.f_frsize} are free")


def _is_another(folder: int, name: str, inode: int) -> bool:
    fd = os.open(name, REGULAR, dir_fd=folder)
    try:
        if inode:
            return os.fstat(fd).st_ino != inode
        return not what_is_wrong(fd, os.fstat(fd))
    finally:
        os.close(fd)


def _age(folder: int, name: str) -> float:
    try:
        return time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


class Producer(NamedTuple):
    """What a producer says of itself."""

    host: str
    pid: int
    job: int
    since: str  # UTC, ISO 8601
    doing: str = ""  # "" when it has just begun


def begin(store: str, key: str, producer: Producer, owner: str) -> str | None:
    """Become the producer, if nobody is; None when somebody else has the lock.

    Returns why there is no lock although this is the producer, "" if there is one.
    """
    with opened_folder(store, LOCKS, 0o700) as folder:
        held = try_lock(f"{store}/{IMAGES}/{LOCKS}", f"{key}.lock")
        if held is None:
            return None
        _held[key] = held
        try:
            _write(folder, key, producer, owner)
        except OSError:
            _held.pop(key).release()
            raise
    return held.lockless


def announce(store: str, key: str, producer: Producer, owner: str) -> None:
    """Say what the producer does now: its `doing`."""
    with opened_folder(store, LOCKS, 0o700) as folder:
        _write(folder, key, producer, owner)


def end(store: str, key: str) -> None:
    """Let the next one have it, if there is one that still needs it."""
    held = _held.pop(key, None)
    if held is None:
        return
    try:
        with opened_folder(store, LOCKS, 0o700) as folder:
            unlink_if_there(key + PRODUCER, folder)
    finally:
        held.release()


def forget_dead(store: str) -> None:
    """Remove what producers said of themselves that died before they could."""
    with opened_folder(store, LOCKS, 0o700) as folder:
        for name in os.listdir(folder):
            key = name.removesuffix(PRODUCER)
            if key == name or (held := try_lock(f"{store}/{IMAGES}/{LOCKS}", f"{key}.lock")) is None:
                continue
            try:
                unlink_if_there(name, folder)
            finally:
                held.release()


def producer_of(store: str, key: str) -> Producer | None:
    """Return what the producer said of itself; None when nobody knows."""
    try:
        with opened_folder(store, LOCKS, 0o700) as folder:
            data = json.loads(read_small(key + PRODUCER, LONGEST_CLAIM, folder))
        words = (str(word)[:LONGEST_WORD] for word in (data["host"], data["since"], data.get("doing", "")))
        host, since, doing = words
        return Producer(host, int(data["pid"]), int(data["job"]), since, doing)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(folder: int, key: str, producer: Producer, owner: str) -> None:
    said = producer._asdict()
    if not producer.doing:
        del said["doing"]
    replace(folder, owner, key + PRODUCER, json.dumps(said).encode(), 0o600)


class RememberedFailure(NamedTuple):
    """A `UserError` by its code and fields."""

    code: str
    fields: dict[str, str]


def remember(store: str, key: str, failure: RememberedFailure, owner: str) -> None:
    """Keep a failure."""
    data = json.dumps({"at": time.time(), **failure._asdict()})
    with opened_folder(store, FAILED) as folder:
        replace(folder, owner, key + META, data.encode())


def recall(store: str, key: str, kept_s: float) -> RememberedFailure | None:
    """Return a failure that is at most `kept_s` seconds old, or None."""
    try:
        with opened_folder(store, FAILED) as folder:
            data = json.loads(read_small(key + META, LONGEST_FAILURE, folder))
        age = time.time() - float(data["at"])
        if -CLOCK_SKEW <= age < kept_s:
            fields = {str(name): str(value) for name, value in data["fields"].items()}
            return RememberedFailure(str(data["code"]), fields)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        pass  # none, or not what `remember` wrote: as good as none
    return None


def as_error(failure: RememberedFailure) -> UserError | None:
    """Return the error that a kept failure stands for; None if this version does not know it."""
    kind = by_code(failure.code)
    return kind(**failure.fields) if kind is not None and issubclass(kind, UserError) else None

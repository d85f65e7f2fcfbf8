"""Publish an image, check its bytes, elect its producer, remember failed imports. Runs as the store's owner.

Publishing: copy to a temporary file beside the final name while hashing → check the copy's superblock → fsync → link
→ write its metadata → write the tag's pointer. A crash between any two leaves a temporary file, or an image without a
pointer; the next import continues from there.

Depth `full` (docs/images.md): every byte of a published image against its recorded SHA-256. Hashing parses nothing.

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
    CHECKED,
    CLOCK_SKEW,
    FAILED,
    IMAGE,
    IMAGES,
    LOCKS,
    LONGEST_POINTER,
    META,
    PINNED,
    PRIVATE_STORES,
    QUARANTINE,
    TAGS,
    Charged,
    Pointer,
    parse_pointer,
    what_is_wrong,
)
from warmstart.images.squashfs import ImageInvalid
from warmstart.store.atomic import TEMP_PREFIX, publish, replace, temp_file
from warmstart.store.locks import Held, try_lock

FORMAT = 1
FOLDERS = (TAGS, LOCKS, FAILED, PINNED, CHECKED, QUARANTINE)
OWNERS_ALONE = frozenset({LOCKS, QUARANTINE})  # 0700
# A live producer writes to its temporary file all the time; where two mounts share no locks, its age protects it.
ABANDONED_S = 60.0
PRODUCER = ".producer"
LONGEST_PRODUCER = 4096
LONGEST_WORD = 80
LONGEST_META = 16384
LONGEST_FAILURE = 16384
LONGEST_CHECK = 4096
DEFINITIVE = frozenset({"image-not-found", "image-forbidden", "image-too-large"})

_held: dict[str, Held] = {}


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
    """What `publish_image` found and did."""

    size: int
    sha256: str
    first: bool  # False: another publisher was faster; its image stays


class Producer(NamedTuple):
    """What a producer says of itself."""

    host: str
    pid: int
    job: int
    since: str  # UTC, ISO 8601
    doing: str = ""  # "" when it has just begun


class RememberedFailure(NamedTuple):
    """A `UserError` by its code and fields."""

    code: str
    fields: dict[str, str]


class ByteCheck(NamedTuple):
    """The result of depth `full`."""

    problem: str  # "" for a whole image
    inode: int
    remembered: bool  # not read again: the file has not changed since it was


@contextmanager
def opened_folder(store: str, name: str = "") -> Iterator[int]:
    """Open `images/` or a folder in it, and make them if they are missing.

    The store itself is never made. `FileNotFoundError` if it is missing: mostly its file system is not mounted.
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
        ensure_dir(name, 0o700 if name in OWNERS_ALONE else 0o755, images)
        with opened_dir(name, images) as folder:
            yield folder
    finally:
        os.close(images)


def publish_image(store: str, fd: int, name: str, draft: Draft, owner: str) -> Published:
    """Copy an open local image to an inode of the store's own, and make that one visible.

    `fd` is inherited, and nobody else can write its inode any more (`producer.claim`); `name` is `image_name`'s.
    `draft`, with `size` and `sha256`, goes into the image's metadata file; `owner` names the temporary file
    (`temp_owner`). `OSError` when the store is full; then nothing is left there.
    """
    size = os.fstat(fd).st_size
    with opened_folder(store) as images:
        _check_space(images, size)
        with temp_file(images, owner) as (temp, temp_fd):
            copied = copy_hashed(fd, temp_fd)
            if copied.size != size:
                raise ImageInvalid(problem=f"{copied.size} bytes were there where {size} should be")
            problem = what_is_wrong(temp_fd, os.fstat(temp_fd))
            if problem:
                raise ImageInvalid(problem=problem)
            first = publish(images, temp, temp_fd, name + IMAGE)
        if first:
            known = {
                "format": FORMAT,
                **draft._asdict(),
                **draft.charged._asdict(),
                "size": size,
                "sha256": copied.sha256,
            }
            del known["charged"]
            replace(images, owner, name + META, json.dumps(known).encode())
    return Published(size, copied.sha256, first)


def _check_space(images: int, size: int) -> None:
    # Fails before minutes of copying, not after them; a quota may still end the copy.
    space = os.fstatvfs(images)
    if space.f_bavail * space.f_frsize < size:
        raise OSError(errno.ENOSPC, f"the image has {size} bytes, {space.f_bavail * space.f_frsize} are free")


def known_of(path: str) -> dict[str, object]:
    """Return what `path` says of a published image (NAME.json); {} if it is missing or damaged."""
    try:
        found = json.loads(read_small(path, LONGEST_META))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


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


def check_bytes(store: str, name: str, owner: str, again: bool = False) -> ByteCheck:
    """Compare every byte of a published image with its recorded SHA-256, once for each state of its file.

    A good result is remembered by inode, size, mtime and ctime, and read again only if `again`. An image whose
    producer died before it wrote down the hash gets it now. `FileNotFoundError` if there is no such image.
    """
    with opened_folder(store) as images:
        fd = open_regular(name + IMAGE, images)
        try:
            status = os.fstat(fd)
            answer = ByteCheck(what_is_wrong(fd, status), status.st_ino, remembered=False)
            if answer.problem:
                return answer
            if not again and _is_checked(store, name, status):
                return answer._replace(remembered=True)
            sha256 = copy_hashed(fd).sha256
        finally:
            os.close(fd)
        known = known_of(os.path.join(store, IMAGES, name + META))
        if "sha256" not in known:
            late = {"format": FORMAT, **known, "size": status.st_size, "sha256": sha256, "recorded_late": True}
            replace(images, owner, name + META, json.dumps(late).encode())
        elif known["sha256"] != sha256:
            return answer._replace(problem=f"its SHA-256 is {sha256} and not {known['sha256']}")
    with opened_folder(store, CHECKED) as folder:
        data = {"stamp": _stamp(status), "at": time.time()}
        replace(folder, owner, name + META, json.dumps(data).encode())
    return answer


def _is_checked(store: str, name: str, status: os.stat_result) -> bool:
    with opened_folder(store, CHECKED) as folder:
        try:
            found = json.loads(read_small(name + META, LONGEST_CHECK, folder))
        except (FileNotFoundError, ValueError):
            return False
    return isinstance(found, dict) and found.get("stamp") == _stamp(status)


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def quarantine(store: str, name: str, reason: str, inode: int = 0) -> bool:
    """Move a damaged image to quarantine; False if there was none.

    A job that has it open or mounted keeps its inode. Another node may have replaced it by a good one meanwhile. So
    what has another inode than `inode` goes back; without `inode`, what has a good superblock.
    """
    quarantined = f"{name}.{time.time_ns()}"
    with opened_folder(store) as images, opened_folder(store, QUARANTINE) as folder:
        try:
            os.rename(name + IMAGE, quarantined + IMAGE, src_dir_fd=images, dst_dir_fd=folder)
        except FileNotFoundError:
            return False
        if _is_another(folder, quarantined + IMAGE, inode):
            with suppress(FileExistsError):
                os.link(quarantined + IMAGE, name + IMAGE, src_dir_fd=folder, dst_dir_fd=images, follow_symlinks=False)
            os.unlink(quarantined + IMAGE, dir_fd=folder)
            return False
        with suppress(FileNotFoundError):
            os.rename(name + META, quarantined + META, src_dir_fd=images, dst_dir_fd=folder)
        replace(folder, QUARANTINE, f"{quarantined}.reason", reason.encode())
    return True


def _is_another(folder: int, name: str, inode: int) -> bool:
    fd = os.open(name, REGULAR, dir_fd=folder)
    try:
        if inode:
            return os.fstat(fd).st_ino != inode
        return not what_is_wrong(fd, os.fstat(fd))
    finally:
        os.close(fd)


def ensure_private(store: str, name: str) -> None:
    """Make the store of the private images `name` (private.py), but never the store itself."""
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ensure_dir(PRIVATE_STORES, 0o700, fd)
        with opened_dir(PRIVATE_STORES, fd) as private:
            ensure_dir(name, 0o700, private)
    finally:
        os.close(fd)


def point(store: str, key: str, digest: str, resolved: float, owner: str) -> None:
    """Write down which digest a tag had at `resolved`, seconds since the epoch."""
    _point(store, key, Pointer(digest, resolved), owner)


def point_unanswered(store: str, key: str, owner: str) -> None:
    """Write down that the registry has just failed to answer for a tag."""
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


def _point(store: str, key: str, pointer: Pointer, owner: str) -> None:
    said = {"format": FORMAT, **pointer._asdict()}
    if not pointer.unanswered:
        del said["unanswered"]
    with opened_folder(store, TAGS) as tags:
        replace(tags, owner, key + META, json.dumps(said).encode())


def temp_owner(key: str, node: str, run_id: str) -> str:
    """Return the part of a temporary file's name that says for which reference, and by whom, it is made."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.{node}.{run_id}"


def sweep(store: str, key: str) -> int:
    """Remove what dead producers of this reference left half copied; its lock is held. Returns how many files."""
    prefix = f"{TEMP_PREFIX}{temp_owner(key, '', '').rstrip('.')}."
    swept = 0
    with opened_folder(store) as images:
        for name in os.listdir(images):
            if name.startswith(prefix) and _age(images, name) > ABANDONED_S:
                swept += unlink_if_there(name, images)
    return swept


def sweep_all(store: str) -> int:
    """Remove every temporary file that no live producer writes to any more; returns how many."""
    swept = 0
    for folder in ("", *FOLDERS):
        with opened_folder(store, folder) as opened:
            for name in os.listdir(opened):
                if name.startswith(TEMP_PREFIX) and _age(opened, name) > ABANDONED_S:
                    swept += unlink_if_there(name, opened)
    return swept


def _age(folder: int, name: str) -> float:
    try:
        return time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def begin(store: str, key: str, producer: Producer, owner: str) -> str | None:
    """Become the producer unless somebody is; None if another process has the lock.

    Else returns why this producer has no lock, "" if it has one.
    """
    with opened_folder(store, LOCKS) as folder:
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
    with opened_folder(store, LOCKS) as folder:
        _write(folder, key, producer, owner)


def end(store: str, key: str) -> None:
    """Release the producer's lock."""
    held = _held.pop(key, None)
    if held is None:
        return
    try:
        with opened_folder(store, LOCKS) as folder:
            unlink_if_there(key + PRODUCER, folder)
    finally:
        held.release()


def forget_dead(store: str) -> None:
    """Remove what dead producers said of themselves."""
    with opened_folder(store, LOCKS) as folder:
        for name in os.listdir(folder):
            key = name.removesuffix(PRODUCER)
            if key == name or (held := try_lock(f"{store}/{IMAGES}/{LOCKS}", f"{key}.lock")) is None:
                continue
            try:
                unlink_if_there(name, folder)
            finally:
                held.release()


def producer_of(store: str, key: str) -> Producer | None:
    """Return what the producer said of itself; None if the file is missing or damaged."""
    try:
        with opened_folder(store, LOCKS) as folder:
            data = json.loads(read_small(key + PRODUCER, LONGEST_PRODUCER, folder))
        host, since, doing = (str(word)[:LONGEST_WORD] for word in (data["host"], data["since"], data.get("doing", "")))
        return Producer(host, int(data["pid"]), int(data["job"]), since, doing)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(folder: int, key: str, producer: Producer, owner: str) -> None:
    said = producer._asdict()
    if not producer.doing:
        del said["doing"]
    replace(folder, owner, key + PRODUCER, json.dumps(said).encode(), 0o600)


def remember(store: str, key: str, failure: RememberedFailure, owner: str) -> None:
    """Write a definitive failure down."""
    data = json.dumps({"at": time.time(), **failure._asdict()})
    with opened_folder(store, FAILED) as folder:
        replace(folder, owner, key + META, data.encode())


def recall(store: str, key: str, max_age_s: float) -> RememberedFailure | None:
    """Return a failure that is at most `kept_s` seconds old, or None."""
    try:
        with opened_folder(store, FAILED) as folder:
            data = json.loads(read_small(key + META, LONGEST_FAILURE, folder))
        age = time.time() - float(data["at"])
        if -CLOCK_SKEW <= age < max_age_s:
            fields = {str(name): str(value) for name, value in data["fields"].items()}
            return RememberedFailure(str(data["code"]), fields)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        pass  # none, or not what `remember` wrote: as good as none
    return None


def as_error(failure: RememberedFailure) -> UserError | None:
    """Return the error that a remembered failure stands for; None if this version does not know it."""
    kind = by_code(failure.code)
    return kind(**failure.fields) if kind is not None and issubclass(kind, UserError) else None

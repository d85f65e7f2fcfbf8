"""Publish images, check their bytes, elect producers, remember failed imports. Runs as the store's owner.

Publishing: copy to a temporary file in the same directory while hashing → check the copy's superblock → fsync → link
→ write its metadata → write the tag's pointer. A crash between any two leaves a temporary file, or an image without a
pointer; the next import continues from there.

Depth `full` (docs/reference/images.md) compares every byte of a published image with its recorded SHA-256. Hashing
parses nothing.

Election: a child of the producer holds the image's lock, so the kernel releases it when either dies. The lock only
saves work: publishing tolerates two producers. `<key>.producer` only informs waiters.

Failures: the last failure of each image's import. Definitive ones (a registry's answer that there is no such image or
no access, and an image that is refused for what it holds) are a negative cache: for a while nobody asks again. Any
other failure is told to those who waited for that import, and to nobody who comes later. A node's own failures (its
disk, its programs) are not here, because other nodes may succeed. A quota is its user's alone. Shared images are
requested without credentials, and private images have stores of their own, so no user gets another one's 401.
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

from warmstart.errors import StoreError, UserError, WarmstartError, by_code
from warmstart.host import wire
from warmstart.host.copying import ReadFailed, copy, copy_hashed
from warmstart.host.files import (
    DIRECTORY,
    PATH,
    REGULAR,
    changed,
    ensure_dir,
    open_regular,
    opened_dir,
    read_small,
    remove_older,
    unlink_if_there,
    weakness,
    written,
)
from warmstart.images.squashfs import ImageInvalid
from warmstart.images.store.layout import (
    CLOCK_SKEW,
    FAILED,
    IMAGE,
    IMAGES,
    LEASES,
    LOCKS,
    LONGEST_POINTER,
    META,
    PINNED,
    PRIVATE_STORES,
    TAGS,
    Charged,
    Pointer,
    parse_pointer,
    superblock_problem,
)
from warmstart.store.atomic import TEMP_PREFIX, publish, replace, temp_file
from warmstart.store.locks import HeldLock, is_locked, try_lock

FORMAT = 1
FOLDERS = (TAGS, LOCKS, FAILED, PINNED)
SHOWN = frozenset({TAGS, LEASES, PINNED})  # 0755; others are the owner's alone, 0700
METADATA_MODE = 0o400  # it names who imported the image
# A live producer keeps writing to its temporary file. Where two mounts share no locks, the file's age protects it.
ABANDONED_S = 60.0
DAMAGED = ".damaged-"  # prefix of the temporary name of a damaged image
PRODUCER = ".producer"
LONGEST_PRODUCER = 4096
LONGEST_WORD = 80
LONGEST_META = 16384
LONGEST_FAILURE = 16384
FAILURES_KEPT_S = 86400.0
REMEMBERED_S = 30.0  # how long a failure spares the others that ask
DEFINITIVE = frozenset(
    {"image-malformed", "image-too-large", "image-not-found", "image-forbidden", "image-not-for-machine"}
)
PERSONAL = frozenset({"image-quota-exceeded"})  # concern the user who is charged, and nobody else

_held: list[HeldLock] = []  # keeps locks until this process ends


class ImageDraft(NamedTuple):
    """The metadata of an image that is to be published."""

    digest: str
    reference: str  # canonical
    kind: str  # MACHINE.RECIPE (layout.py)
    importer: str
    published: float  # seconds since the epoch
    node: str
    job_id: int
    charged: Charged
    files: int = 0  # that it unpacks to; 0 if nobody has counted
    unpacked: int = 0  # bytes of these


class Published(NamedTuple):
    """The result of `publish_image`."""

    size: int  # bytes
    sha256: str  # hexadecimal
    first: bool  # False: another publisher was first, and its image stays


class Recorded(NamedTuple):
    """What is known of an image before it is unpacked. The numbers may be wrong."""

    sha256: str  # hexadecimal; "" as long as it is not recorded
    files: int  # 0 if nobody has counted
    unpacked: int  # bytes


class ImageProducer(NamedTuple):
    """What a producer records about itself and its progress, for waiters."""

    host: str
    pid: int
    job: int  # that asked first; 0 for an administrator
    since: str  # UTC, ISO 8601
    phase: str = ""  # what it does now; "" when it has just begun
    done: int = 0  # bytes of this phase so far
    digest: str = ""  # that it imports; "" while the registry has not said what the tag means


class RememberedFailure(NamedTuple):
    """A failed import: the error by its code and fields, and when it was remembered, in seconds since the epoch."""

    code: str
    fields: dict[str, str]
    text: str = ""  # the message, for versions that do not know the code
    uid: int = -1  # whom it concerns, -1 for everybody
    at: float = 0.0

    @classmethod
    def of(cls, error: WarmstartError, uid: int = -1) -> RememberedFailure:
        """Return an error as it is remembered; `uid` is that of the user who is charged."""
        fields = {name: str(value) for name, value in error.fields.items()}
        return cls(error.code, fields, str(error), uid if error.code in PERSONAL else -1)


class ByteCheck(NamedTuple):
    """The result of depth `full`."""

    problem: str  # "" for a whole image
    inode: int


@contextmanager
def opened_folder(store: str, name: str = "") -> Iterator[int]:
    """Open `images/` or a folder in it; create them if they are missing.

    The store itself is never created. `FileNotFoundError` if it is missing: usually its file system is not mounted.
    An error has the whole path.
    """
    store_fd = os.open(store, PATH & ~os.O_NOFOLLOW)
    try:
        images = _open_or_make(f"{store}/{IMAGES}", 0o755, store_fd, PATH if name else DIRECTORY)
    finally:
        os.close(store_fd)
    try:
        if not name:
            yield images
            return
        mode = 0o755 if name in SHOWN else 0o700
        folder = _open_or_make(f"{store}/{IMAGES}/{name}", mode, images, DIRECTORY)
        try:
            yield folder
        finally:
            os.close(folder)
    finally:
        os.close(images)


def _open_or_make(path: str, mode: int, dir_fd: int, flags: int) -> int:
    # It is nearly always there, and each further call is a question to the file server.
    name = os.path.basename(path)
    try:
        try:
            return os.open(name, flags, dir_fd=dir_fd)
        except FileNotFoundError:
            ensure_dir(name, mode, dir_fd)
            return os.open(name, flags, dir_fd=dir_fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def publish_image(store: str, fd: int, name: str, draft: ImageDraft, writer: str) -> Published:
    """Copy an open local image to a new inode in the store, and make that visible as `name` (`image_name`).

    `fd` is inherited, and nobody else can still write its inode (`producer.claim`). `draft`, `size` and `sha256` go
    into the image's metadata file; `writer` names the temporary file (`writer_of`). Raises `ImageInvalid` if the copy
    is not a whole image, and `OSError` if the store is full; nothing is left there then.
    """
    size = os.fstat(fd).st_size
    with opened_folder(store) as images:
        _check_space(images, size)
        with temp_file(images, writer) as (temp, temp_fd):
            copied = copy_hashed(fd, temp_fd)
            if copied.size != size:
                raise ImageInvalid(problem=f"read {copied.size} bytes of {size}")
            problem = superblock_problem(temp_fd, os.fstat(temp_fd))
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
            replace(images, writer, name + META, json.dumps(known).encode(), METADATA_MODE)
    return Published(size, copied.sha256, first)


def _check_space(images: int, size: int) -> None:
    # Fail before minutes of copying rather than after them. A quota may still end the copy.
    space = os.fstatvfs(images)
    if space.f_bavail * space.f_frsize < size:
        from warmstart.policy.units import format_size

        free = format_size(space.f_bavail * space.f_frsize)
        raise OSError(errno.ENOSPC, f"the image has {format_size(size)}, and {free} of the store are free")


def read_metadata(path: str) -> dict[str, object]:
    """Return the metadata of a published image from `path` (NAME.json).

    {} if it is missing or damaged, and for others than the store's owner.
    """
    try:
        metadata = wire.parse(read_small(path, LONGEST_META))
    except (FileNotFoundError, PermissionError, ValueError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def copy_out(path: str, target: int) -> str:
    """Copy an image into an open file; return what is wrong with that file's disk, "" if nothing.

    Raises `ReadFailed`, or another `OSError`, if the image cannot be read.
    """
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


def recorded(store: str, name: str) -> Recorded:
    """Return what was recorded of an image when it was published."""
    known = read_metadata(os.path.join(store, IMAGES, name + META))
    sha256, files, unpacked = known.get("sha256"), known.get("files"), known.get("unpacked")
    if not (isinstance(files, int) and isinstance(unpacked, int) and files > 0 and unpacked >= 0):
        files = unpacked = 0
    return Recorded(sha256 if isinstance(sha256, str) else "", files, unpacked)


def check_bytes(store: str, name: str, writer: str) -> ByteCheck:
    """Compare every byte of a published image with its recorded SHA-256.

    If the producer died before it recorded the hash, record it now. `FileNotFoundError` if there is no such image.
    """
    with opened_folder(store) as images:
        fd = open_regular(name + IMAGE, images)
        try:
            status = os.fstat(fd)
            answer = ByteCheck(superblock_problem(fd, status), status.st_ino)
            if answer.problem:
                return answer
            sha256 = copy_hashed(fd).sha256
        finally:
            os.close(fd)
        known = read_metadata(os.path.join(store, IMAGES, name + META))
        if known.get("sha256", sha256) != sha256:
            return answer._replace(problem=f"its SHA-256 is {sha256} and not {known['sha256']}")
        if "sha256" not in known:
            with suppress(OSError):  # a full or read-only store: the image is good nevertheless
                late = {"format": FORMAT, **known, "size": status.st_size, "sha256": sha256, "recorded_late": True}
                replace(images, writer, name + META, json.dumps(late).encode(), METADATA_MODE)
    return answer


def unrecorded(store: str) -> list[str]:
    """Return the names of images whose producers died before they wrote the metadata; `check_bytes` writes it."""
    with opened_folder(store) as images:
        names = frozenset(os.listdir(images))
        squashfs = [name for name in sorted(names) if name.endswith(IMAGE) and not name.startswith(".")]
        stems = [name.removesuffix(IMAGE) for name in squashfs]
        before = time.time() - ABANDONED_S
        return [stem for stem in stems if stem + META not in names and written(stem + IMAGE, images) < before]


def put_away(store: str, name: str, inode: int = 0) -> bool:
    """Give a damaged image a temporary name, which goes after the lease (`eviction`); False if there was none.

    A job may have it open or mounted. Another node may meanwhile have replaced it by a good one. So the file goes back
    if its inode is not `inode` or, without `inode`, if `find` would use it.
    """
    temporary = f"{DAMAGED}{name}.{time.time_ns()}{IMAGE}"
    with opened_folder(store) as images:
        try:
            os.rename(name + IMAGE, temporary, src_dir_fd=images, dst_dir_fd=images)
        except FileNotFoundError:
            return False
        if _is_another(images, temporary, inode):
            with suppress(FileExistsError):
                os.link(temporary, name + IMAGE, src_dir_fd=images, dst_dir_fd=images, follow_symlinks=False)
            os.unlink(temporary, dir_fd=images)
            return False
        remove_metadata(images, name, temporary)
    return True


def remove_metadata(images: int, name: str, moved: str) -> None:
    """Remove the metadata of an image that was moved to `moved`, if there is any.

    Metadata that was written since then is that of a new import, and stays.
    """
    taken = f"{TEMP_PREFIX}{name}{META}"
    try:
        os.rename(name + META, taken, src_dir_fd=images, dst_dir_fd=images)
    except FileNotFoundError:
        return
    if written(taken, images) > changed(moved, images):
        with suppress(FileExistsError, FileNotFoundError):  # imported once more, or another process has removed it
            os.link(taken, name + META, src_dir_fd=images, dst_dir_fd=images, follow_symlinks=False)
    unlink_if_there(taken, images)


def _is_another(folder: int, name: str, inode: int) -> bool:
    fd = os.open(name, REGULAR, dir_fd=folder)
    try:
        if inode:
            return os.fstat(fd).st_ino != inode
        status = os.fstat(fd)
        return not (weakness(status, (0, os.geteuid())) or superblock_problem(fd, status))
    finally:
        os.close(fd)


def ensure_private(store: str, name: str) -> None:
    """Create the store of the private images `name` (private.py) if it is missing; never `store` itself."""
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ensure_dir(PRIVATE_STORES, 0o700, fd)
        with opened_dir(PRIVATE_STORES, fd) as private:
            ensure_dir(name, 0o700, private)
    finally:
        os.close(fd)


def point(store: str, key: str, digest: str, resolved: float, writer: str) -> None:
    """Record the digest that a tag had at `resolved` (seconds since the epoch)."""
    content = {"format": FORMAT, **Pointer(digest, resolved)._asdict()}
    with opened_folder(store, TAGS) as tags:
        replace(tags, writer, key + META, json.dumps(content).encode())


def last_pointer(store: str, key: str) -> Pointer | None:
    """Return the pointer of a tag, however old; None if there is none."""
    with opened_folder(store, TAGS) as tags:
        try:
            return parse_pointer(read_small(key + META, LONGEST_POINTER, tags))
        except (FileNotFoundError, ValueError):
            return None


def writer_of(key: str, node: str, run_id: str) -> str:
    """Return the part of a temporary file's name that identifies the reference (by `key`), the node and the run."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.{node}.{run_id}"


def sweep(store: str, key: str) -> int:
    """Remove half-copied files of dead producers of this reference; return how many. The caller holds its lock."""
    prefix = f"{TEMP_PREFIX}{writer_of(key, '', '').rstrip('.')}."
    with opened_folder(store) as images:
        return remove_older(images, time.time() - ABANDONED_S, lambda name: name.startswith(prefix))


def sweep_all(store: str) -> None:
    """Remove all temporary files that no live producer writes to any more."""
    for folder in ("", *FOLDERS):
        with opened_folder(store, folder) as opened:
            remove_older(opened, time.time() - ABANDONED_S, lambda name: name.startswith(TEMP_PREFIX))


def begin(store: str, key: str, producer: ImageProducer, writer: str) -> str | None:
    """Become the producer until this process ends; None if another process holds the lock.

    Otherwise return why the file system gives no lock, "" if this producer has it.
    """
    with opened_folder(store, LOCKS) as folder:
        held = try_lock(f"{store}/{IMAGES}/{LOCKS}", f"{key}.lock")
        if held is None:
            return None
        try:
            _write(folder, key, producer, writer)
        except OSError:
            held.release()
            raise
    _held.append(held)
    return held.lockless


def announce(store: str, key: str, producer: ImageProducer, writer: str) -> None:
    """Record what the producer does now (`producer.doing`)."""
    with opened_folder(store, LOCKS) as folder:
        _write(folder, key, producer, writer)


def end(store: str, key: str) -> None:
    """Remove the record of the producer, who is about to release the lock."""
    with opened_folder(store, LOCKS) as folder:
        unlink_if_there(key + PRODUCER, folder)


def forget_dead(store: str) -> None:
    """Remove the records of dead producers (`<key>.producer`)."""
    with opened_folder(store, LOCKS) as folder:
        for name in os.listdir(folder):
            key = name.removesuffix(PRODUCER)
            if key == name or (held := try_lock(f"{store}/{IMAGES}/{LOCKS}", f"{key}.lock")) is None:
                continue
            try:
                unlink_if_there(name, folder)
            finally:
                held.release()


def is_at_work(store: str, key: str) -> bool:
    """Return whether a live producer imports the image. Touches its lock only if a producer has left its record."""
    locks = f"{store}/{IMAGES}/{LOCKS}"
    try:
        os.stat(f"{locks}/{key}{PRODUCER}", follow_symlinks=False)
    except FileNotFoundError:
        return False
    return is_locked(locks, f"{key}.lock")


def under_way(store: str) -> dict[str, ImageProducer]:
    """Return the live producers of the store by the names of their locks (`ImageQuery.lock`)."""
    try:
        names = os.listdir(f"{store}/{IMAGES}/{LOCKS}")
    except FileNotFoundError:
        return {}  # nothing was ever imported
    keys = sorted(name.removesuffix(PRODUCER) for name in names if name.endswith(PRODUCER))
    producers = (
        (key, producer_of(store, key)) for key in keys if is_locked(f"{store}/{IMAGES}/{LOCKS}", f"{key}.lock")
    )
    return {key: producer for key, producer in producers if producer is not None}


def producer_of(store: str, key: str) -> ImageProducer | None:
    """Return the record of the producer; None if the file is missing or damaged."""
    try:
        with opened_folder(store, LOCKS) as folder:
            content = wire.parse(read_small(key + PRODUCER, LONGEST_PRODUCER, folder))
        producer = wire.from_object(ImageProducer, content)
    except (FileNotFoundError, ValueError):
        return None
    host, since, phase = (word[:LONGEST_WORD] for word in (producer.host, producer.since, producer.phase))
    return producer._replace(host=host, since=since, phase=phase)


def _write(folder: int, key: str, producer: ImageProducer, writer: str) -> None:
    replace(folder, writer, key + PRODUCER, json.dumps(producer._asdict()).encode(), 0o600)


def remember(store: str, key: str, failure: RememberedFailure, writer: str) -> None:
    """Record how an import failed."""
    data = json.dumps(failure._replace(at=time.time())._asdict())
    with opened_folder(store, FAILED) as folder:
        replace(folder, writer, key + META, data.encode())


def last_failure(store: str, key: str) -> RememberedFailure | None:
    """Return how the last import that failed did so; None if none has, or the file is damaged."""
    try:  # by its path: whoever waits reads it again and again
        data = read_small(f"{store}/{IMAGES}/{FAILED}/{key}{META}", LONGEST_FAILURE)
        return wire.from_object(RememberedFailure, wire.parse(data))
    except (FileNotFoundError, ValueError):
        return None


def is_recent(failure: RememberedFailure) -> bool:
    """Return whether a failure still counts."""
    return -CLOCK_SKEW <= time.time() - failure.at < REMEMBERED_S


def is_definitive(failure: RememberedFailure) -> bool:
    """Return whether a failure is recent and definitive: an import would end with it."""
    return failure.code in DEFINITIVE and is_recent(failure)


def forget_failures(store: str, older_than_s: float) -> None:
    """Remove the records of old failures."""
    with opened_folder(store, FAILED) as folder:
        remove_older(folder, time.time() - older_than_s, lambda name: name.endswith(META))


def as_error(failure: RememberedFailure) -> UserError | StoreError | None:
    """Return the error for a remembered failure; None if this version does not know its code.

    A store's word never decides that this node is broken, or what its disk has room for.
    """
    kind = by_code(failure.code)
    return kind(**failure.fields) if kind is not None and issubclass(kind, UserError | StoreError) else None

"""The layout of images in the store, and the warm look-up. Runs as the store's owner. Hot path.

    images/                                   0755
        <hex64>.<machine>.<recipe>.sqsh       0444: the image whose registry digest is sha256:<hex64>
        <hex64>.<machine>.<recipe>.json       0400: what is known of it (published.py)
        tags/<key>.json                       the digest that a tag had, and when (published.py)
        used/<name>/<node>[~<uid>]            0700; mtime: when a node last used it, to the day (uses.py)
        leases/<name>[~]                      mtime: when any node last did; for the jobs' users (uses.py)
        pinned/<name>                         never evicted (eviction.py)
        locks/                                0700: who imports what (published.py)
        failed/<key>.json                     0700: how imports failed (published.py)

`machine` is that of uname(2): a digest may stand for a list of images, of which an import picks the one for the node's
CPU. `recipe` is the importer and the version of its options, which change the bytes, too. A look-up takes eight system
calls on the store for a tag and four for a digest, however full the store is, and lists no directory.
"""

from __future__ import annotations

import os
import stat
import time

from warmstart.host import wire
from warmstart.host.files import REGULAR, weakness
from warmstart.images import squashfs
from warmstart.images.reference import Reference, is_digest
from warmstart.lean import Collection, NamedTuple, sha256

IMAGES = "images"
TAGS = "tags"
USED = "used"
LEASES = "leases"
PINNED = "pinned"
LOCKS = "locks"
FAILED = "failed"
IMAGE = ".sqsh"
META = ".json"
PRIVATE_STORES = "private"  # directory of the stores of private images (private.py)
LONGEST_KEY = 150
LONGEST_POINTER = 4096
IMPORT_S = 7200.0  # how long an import may take, from when it was first asked for, with all its attempts
UNPACK_S = 20.0  # that a job waits until its image is unpacked; then it starts from the file
DAY = 86400.0  # between two records of a use (uses.py)
CLOCK_SKEW = 300.0  # seconds; a pointer from further in the future is ignored, since it would not expire

_ESCAPES = str.maketrans({"/": "+", ":": "="})  # neither is in a canonical reference
_UNESCAPES = str.maketrans({"+": "/", "=": ":"})


class ImageQuery(NamedTuple):
    """A reference, and its names in the store."""

    reference: Reference
    kind: str  # MACHINE.RECIPE: uname's machine, the importer's recipe
    key: str  # name of the tag's pointer
    lock: str  # name of the import's lock: one for each kind
    fresh_after: float  # seconds since the epoch: what a tag meant earlier has to be asked again


class Charged(NamedTuple):
    """The user whose quota an import counts against; nobody's if a rule of the policy names the image."""

    user: str = ""
    uid: int = -1


NOBODY = Charged()


class Pointer(NamedTuple):
    """The content of `tags/<key>.json`."""

    digest: str  # `sha256:HEX`
    resolved: float  # seconds since the epoch


class Found(NamedTuple):
    """An image file in the store."""

    name: str  # as `image_name` gives it
    path: str
    digest: str
    size: int
    invalid: str  # what is wrong with the file, "" if nothing


def key_of(canonical: str) -> str:
    """Return the file name for a canonical reference; different references have different names."""
    name = canonical.translate(_ESCAPES)
    if len(name) <= LONGEST_KEY:
        return name
    return f"long-{sha256(canonical.encode()).hexdigest()}"


def reference_of(key: str) -> str:
    """Return the canonical reference whose `key_of` this is; the name itself of one that is too long to tell."""
    return key.translate(_UNESCAPES)


def image_name(digest: str, kind: str) -> str:
    """Return an image's file name without its ending, for a digest (`sha256:HEX`) and a kind."""
    return f"{digest.removeprefix('sha256:')}.{kind}"


def digest_of(name: str) -> str:
    """Return the digest in an image's file name."""
    return f"sha256:{name.partition('.')[0]}"


def find(store: str, key: str, digest: str, kind: str, fresh_after: float, *, owner: int = -1) -> Found | None:
    """Return the image of a reference; None if it is not in the store and has to be imported.

    `digest` is the reference's own, or "" for a tag: then it is read from `tags/<key>.json`. The file may be damaged:
    see `Found.invalid`. So is one that somebody else than the store's `owner` can change, by default this process's
    uid; such a pointer is none. Raises `OSError` if the store fails.
    """
    owners = (0, os.geteuid() if owner < 0 else owner)
    digest = digest or _tag_digest(os.path.join(store, IMAGES, TAGS, key + META), fresh_after, owners)
    if not digest:
        return None
    name = image_name(digest, kind)
    path = os.path.join(store, IMAGES, name + IMAGE)
    try:
        fd = os.open(path, REGULAR)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        problem = weakness(status, owners) or superblock_problem(fd, status)
    finally:
        os.close(fd)
    return Found(name, path, digest, status.st_size, problem)


def superblock_problem(fd: int, status: os.stat_result) -> str:
    """Return why the file cannot be a whole image, "" if it can (depth `superblock`)."""
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    try:
        squashfs.parse(os.pread(fd, squashfs.SIZE, 0), status.st_size)
    except squashfs.ImageInvalid as error:
        return str(error.fields["problem"])
    return ""


def parse_pointer(data: bytes) -> Pointer | None:
    """Return the pointer in the content of a tag's file; None if it is damaged."""
    try:
        content = wire.parse(data)
        pointer = Pointer(str(content["digest"]), wire.decode(float, content["resolved"]))
    except (ValueError, KeyError, TypeError):
        return None
    return pointer if is_digest(pointer.digest) else None


def _tag_digest(path: str, fresh_after: float, owners: Collection[int]) -> str:
    """Return the digest of a tag's pointer; "" if the pointer is missing, old or damaged, or others can change it."""
    try:
        fd = os.open(path, REGULAR)
    except FileNotFoundError:
        return ""
    try:
        status = os.fstat(fd)
        is_ours = stat.S_ISREG(status.st_mode) and not weakness(status, owners)
        data = os.read(fd, LONGEST_POINTER) if is_ours else b""
    finally:
        os.close(fd)
    pointer = parse_pointer(data)
    if pointer is None or not fresh_after <= pointer.resolved <= time.time() + CLOCK_SKEW:
        return ""
    return pointer.digest

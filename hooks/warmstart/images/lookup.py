"""Where images lie in the store, and the warm look-up. Runs as the store's owner, in the worker. Hot path.

    images/                                   0755
        <hex64>.<machine>.sqsh                0444: the image whose registry digest is sha256:<hex64>
        <hex64>.<machine>.json                what is known of it (publishing.py)
        tags/<key>.json                       the digest that a tag had, and when
        locks/                                0700: election.py
        failed/                               failures.py
        quarantine/                           0700: what was no whole image any more (publishing.py)

`machine` is uname's: one digest may stand for a list of images, and which of them an import picks depends on
the node's CPU. A look-up costs eight system calls on the store for a tag and four for a digest, whatever is in
it, and lists no directory.
"""

from __future__ import annotations

import json
import os
import stat
import time
from typing import Any

from warmstart.host.files import REGULAR, open_regular
from warmstart.images import superblock
from warmstart.images.reference import is_digest

IMAGES = "images"
TAGS = "tags"
IMAGE = ".sqsh"
META = ".json"
LONGEST_KEY = 160
LONGEST_POINTER = 4096
CLOCK_SKEW = 300.0  # seconds; a pointer from further in the future is one that would never get old

_ESCAPES = str.maketrans({"/": "+", ":": "="})  # neither is in a canonical reference
Found = dict[str, Any]


def key_of(canonical: str) -> str:
    """Return the file name that stands for a canonical reference; different ones never share one."""
    name = canonical.translate(_ESCAPES)
    if len(name) <= LONGEST_KEY:
        return name
    import hashlib  # costs as much as the look-up, and references are seldom that long

    return f"long-{hashlib.sha256(canonical.encode()).hexdigest()}"


def image_name(digest: str, machine: str) -> str:
    """Return the name, without its ending, of the image of a digest (`sha256:HEX`) for a machine."""
    return f"{digest.removeprefix('sha256:')}.{machine}"


def find(store: str, key: str, digest: str, machine: str, not_before: float) -> Found | None:
    """Return the image of a reference, if it is in the store; None if it has to be imported.

    `digest` is the reference's own, or "" for a tag: then `tags/<key>.json` says it, if it was written at
    `not_before` (seconds since the epoch) or later. The answer has `path`, `digest`, `size`, and `invalid`: what
    is wrong with the file, "" if nothing. Raises `OSError` for a store that does not answer.
    """
    if not digest:
        digest = _tag_digest(os.path.join(store, IMAGES, TAGS, key + META), not_before)
    if not digest:
        return None
    path = os.path.join(store, IMAGES, image_name(digest, machine) + IMAGE)
    try:
        fd = os.open(path, REGULAR)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        problem = what_is_wrong(fd, status)
    finally:
        os.close(fd)
    return {"path": path, "digest": digest, "size": status.st_size, "invalid": problem}


def what_is_wrong(fd: int, status: os.stat_result) -> str:
    """Return why the file can't be a whole image, "" if it can; depth `superblock`."""
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    try:
        superblock.parse(os.pread(fd, superblock.SIZE, 0), status.st_size)
    except superblock.ImageInvalid as error:
        return str(error.fields["problem"])
    return ""


def _tag_digest(path: str, not_before: float) -> str:
    """Return what a tag's pointer says, "" if there is none, if it is too old, or damaged."""
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        return ""
    try:
        data = os.read(fd, LONGEST_POINTER)
    finally:
        os.close(fd)
    try:
        pointer = json.loads(data)
        digest, resolved = str(pointer["digest"]), float(pointer["resolved"])
    except (ValueError, KeyError, TypeError):
        return ""
    fresh = not_before <= resolved <= time.time() + CLOCK_SKEW
    return digest if fresh and is_digest(digest) else ""

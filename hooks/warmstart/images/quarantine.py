"""What lies in the quarantine, and how it is emptied. Runs as the store's owner, in the worker.

    images/quarantine/<name>.<time in ns>.{sqsh,json,reason}      publishing.quarantine moves it there

Somebody may want to look at what a disk or a network has made of an image, and has two weeks for that. A disk that
goes bad damages one image after another, all of the same kind: the last few tell as much as all would. A job that had
one open when it was moved still has it, so nothing goes before the policy's lease is over.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from warmstart.host.files import read_small, unlink_if_there
from warmstart.images.inventory import known_of
from warmstart.images.layout import IMAGE, IMAGES, META
from warmstart.images.published import QUARANTINE, opened_folder

RETENTION_S = 14 * 86400.0
MOST = 8
REASON = ".reason"
LONGEST_REASON = 4096
ENDINGS = (IMAGE, META, REASON)


class QuarantinedImage(NamedTuple):
    """A quarantined image."""

    name: str
    path: str
    bytes: int
    at: float  # seconds since the epoch
    reason: str
    reference: str
    private: str  # set by whoever lists all stores: the name of its store of private images, "" for the shared one
    store: str


def quarantined(store: str) -> list[QuarantinedImage]:
    """Return what lies there, the oldest first.

    `PermissionError` for anybody but the store's owner.
    """
    folder = os.path.join(store, IMAGES, QUARANTINE)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = (_describe(store, folder, name) for name in {_stem(name) for name in names} if name)
    return sorted(found, key=lambda entry: entry.at)


def empty(store: str, now: float, lease: float) -> list[str]:
    """Remove what has lain there for two weeks, and all but the last few, but nothing before its lease; return it.

    `now` in seconds since the epoch, `lease` in seconds.
    """
    found = quarantined(store)
    last = found[-MOST:]
    going = [entry.name for entry in found if now - entry.at > (max(RETENTION_S, lease) if entry in last else lease)]
    with opened_folder(store, QUARANTINE, 0o700) as folder:
        for name in going:
            for ending in ENDINGS:
                unlink_if_there(name + ending, folder)
    return going


def _stem(name: str) -> str:
    """Return NAME.TIME of one of its files, "" for anything else."""
    stem = next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), "")
    return stem if stem.rpartition(".")[2].isdecimal() and not stem.startswith(".") else ""


def _describe(store: str, folder: str, name: str) -> QuarantinedImage:
    path = os.path.join(folder, name)
    size = 0
    for ending in ENDINGS:
        try:
            size += os.stat(path + ending, follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # whoever moved it died in between, or somebody else has just emptied this
    try:
        reason = read_small(path + REASON, LONGEST_REASON).decode("utf-8", "replace")
    except FileNotFoundError:
        reason = ""
    at = int(name.rpartition(".")[2]) / 1e9
    reference = str(known_of(path + META).get("reference", ""))
    return QuarantinedImage(name, path + IMAGE, size, at, reason, reference, "", store)

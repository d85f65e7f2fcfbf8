"""Which images the store has, whose they are, and what keeps each of them. Never on a hook's warm path.

Reads only; as the store's owner in the worker, or as whoever asks: all of it is readable for everybody.
"""

from __future__ import annotations

import json
import os
import time
from typing import NamedTuple

from warmstart.host.files import read_small
from warmstart.images import uses
from warmstart.images.layout import IMAGE, IMAGES, META

PINNED = "pinned"
LONGEST = 16384
# A new image is its producer's, who has not marked it yet.
NEW_S = 3600.0


class ImageEntry(NamedTuple):
    """An image in the store; from `digest` on what is known of it, "" or -1 where nothing is."""

    name: str
    path: str
    bytes: int
    published: float  # seconds since the epoch, as `last_use`
    last_use: float
    nodes: list[str]  # those that used it within the lease
    protected: str  # "pinned" | "in use" | "new" | ""
    digest: str
    reference: str
    importer: str
    user: str
    account: str
    sha256: str
    uid: int
    private: str  # set by whoever lists all stores: the name of its store of private images, "" for the shared one
    store: str


def inventory(store: str, lease: float) -> list[ImageEntry]:
    """Return every image of the store, the one that was used least recently first; `lease` in seconds."""
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
    """Return one image as `inventory` does; None if it is not there."""
    path = os.path.join(store, IMAGES, name)
    try:
        status = os.stat(path + IMAGE, follow_symlinks=False)
    except FileNotFoundError:
        return None
    known = known_of(path + META)
    marks = uses.last(store, name)
    now = time.time()
    nodes = sorted(node for node, at in marks.items() if now - at < lease)
    is_pinned = os.path.exists(os.path.join(store, IMAGES, PINNED, name))
    is_new = now - status.st_mtime < NEW_S
    published, uid = known.get("published"), known.get("uid")
    return ImageEntry(
        name=name,
        path=path + IMAGE,
        bytes=status.st_size,
        published=float(published) if isinstance(published, (int, float)) else status.st_mtime,
        last_use=max([*marks.values(), status.st_mtime]),
        nodes=nodes,
        protected="pinned" if is_pinned else "in use" if nodes else "new" if is_new else "",
        uid=uid if isinstance(uid, int) else -1,
        private="",
        store=store,
        **{key: str(known.get(key, "")) for key in ("digest", "reference", "importer", "user", "account", "sha256")},
    )


def known_of(path: str) -> dict[str, object]:
    """Return what was written down when the image was published; {} if that is missing or damaged."""
    try:
        found = json.loads(read_small(path, LONGEST))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_image(name: str) -> bool:
    return name.endswith(IMAGE) and not name.startswith(".")

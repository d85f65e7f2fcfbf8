"""Which images the store has, whose they are, and what keeps each of them. Never on a hook's warm path.

Reads only; as the store's owner in the worker, or as whoever asks: all of it is readable for everybody.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from warmstart.host.files import read_small
from warmstart.images import uses
from warmstart.images.lookup import IMAGE, IMAGES, META

PINNED = "pinned"
LONGEST = 16384
# A new image is its producer's, who has not marked it yet.
NEW_S = 3600.0
Entry = dict[str, Any]


def inventory(store: str, lease: float) -> list[Entry]:
    """Return every image of the store, the one that was used least recently first.

    Each has `name`, `path`, `bytes`, `published`, `last_use` (seconds since the epoch), `nodes` (those that used it
    within `lease` seconds), `protected` ("pinned", "in use", "new" or ""), and of what is known of it `digest`,
    `reference`, `importer`, `user`, `uid`, `account` ("" or -1 where that is unknown).
    """
    folder = os.path.join(store, IMAGES)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        if not os.path.isdir(store):
            raise
        return []  # nothing was ever imported
    entries = (describe(store, name.removesuffix(IMAGE), lease) for name in names if _is_image(name))
    return sorted((entry for entry in entries if entry), key=lambda entry: float(entry["last_use"]))


def describe(store: str, name: str, lease: float) -> Entry:
    """Return one image as `inventory` does; {} if it is not there."""
    path = os.path.join(store, IMAGES, name)
    try:
        status = os.stat(path + IMAGE, follow_symlinks=False)
    except FileNotFoundError:
        return {}
    known = known_of(path + META)
    marks = uses.last(store, name)
    now = time.time()
    nodes = sorted(node for node, at in marks.items() if now - at < lease)
    is_pinned = os.path.exists(os.path.join(store, IMAGES, PINNED, name))
    is_new = now - status.st_mtime < NEW_S
    return {
        "name": name,
        "path": path + IMAGE,
        "bytes": status.st_size,
        "published": float(known.get("published", status.st_mtime)),
        "last_use": max([*marks.values(), status.st_mtime]),
        "nodes": nodes,
        "protected": "pinned" if is_pinned else "in use" if nodes else "new" if is_new else "",
        **{key: str(known.get(key, "")) for key in ("digest", "reference", "importer", "user", "account", "sha256")},
        "uid": int(known.get("uid", -1)),
    }


def known_of(path: str) -> dict[str, Any]:
    """Return what was written down when the image was published; {} if that is missing or damaged."""
    try:
        found = json.loads(read_small(path, LONGEST))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_image(name: str) -> bool:
    return name.endswith(IMAGE) and not name.startswith(".")

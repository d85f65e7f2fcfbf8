"""Uses: when each node last used an image. They order eviction and protect the images of live jobs.

    <store>/images/used/<name>/<node>         empty; its mtime is the last use on that node, to the day
    <store>/images/used/<name>/<node>~<uid>   the same, of which a job of that user left a note (notes.py)
    <store>/images/leases/<name>              empty; its mtime is the last use on any node
    <store>/images/leases/<name>~             the same of the uses that were noted

Nobody but the store's owner sees who uses what; for all others there are the leases. They are written last, so what one
promises is true.

Runs as the store's owner, but for `last` and the two `is_…`. A write to the shared file system for each job would cost
more than the look-up, so a node records its use of an image once a day, and knows by its own disk that it has
(client.py). Nodes do not know each other's jobs, and Slurm is not queried (docs/architecture.md, rule 8). Instead, an
image counts as used by a live job on a node until the policy's `keep.lease` after that node's last use, which is longer
than any job lasts. What a job's user only claims protects for two days, is recorded again each day while the job runs,
and is bounded for each user (docs/threats.md, row 29).
"""

from __future__ import annotations

import os
import time

from warmstart.host.files import ensure_dir, opened_dir, touch
from warmstart.images.store.layout import DAY, IMAGE, IMAGES, LEASES, PINNED, USED
from warmstart.lean import suppress

NOTED_LEASE = 2 * DAY  # of a use that was noted; maintenance records it again each day while the job runs
MOST_NOTED = 16  # images that the notes of one user's jobs protect
_NOTED = "~"  # in the file name of such a use; in no node's name


def record(store: str, name: str, node: str) -> None:
    """Record that the node uses the image now. Raises `OSError`."""
    from warmstart.images.store.published import opened_folder  # readers need none of it

    with opened_folder(store, USED) as used:
        ensure_dir(name, 0o755, used)
        with opened_dir(name, used) as folder:
            touch(node, folder)
    with opened_folder(store, LEASES) as leases:
        touch(name + _NOTED if _NOTED in node else name, leases)


def record_noted(store: str, names: list[str], node: str, uid: int) -> int:
    """Record the uses that jobs of a user have noted, as `record` does; return how many were new.

    Leaves out images that the store does not have, those of which such a use was recorded today, and those beyond
    `MOST_NOTED`.
    """
    own = f"{node}{_NOTED}{uid}"
    day_ago = time.time() - DAY
    there = [name for name in names if os.path.exists(os.path.join(store, IMAGES, name + IMAGE))]
    wanted = [name for name in there if last(store, name).get(own, 0.0) <= day_ago]
    protected = _protected_by_notes(store, uid) if wanted else set()
    recorded = 0
    for name in wanted:
        if name in protected or len(protected) < MOST_NOTED:
            record(store, name, own)
            protected.add(name)
            recorded += 1
    return recorded


def _protected_by_notes(store: str, uid: int) -> set[str]:
    """Return the images that the notes of a user's jobs protect, on any node."""
    now = time.time()
    images = {file.removesuffix(IMAGE) for file in os.listdir(os.path.join(store, IMAGES)) if file.endswith(IMAGE)}
    return {
        name
        for name in images
        for use, at in last(store, name).items()
        if use.endswith(f"{_NOTED}{uid}") and now - at < NOTED_LEASE
    }


def lease_of(use: str, lease: float) -> float:
    """Return for how many seconds a use protects, by its file name; `lease` is that of the policy."""
    return min(lease, NOTED_LEASE) if _NOTED in use else lease


def node_of(use: str) -> str:
    """Return the node of a use, by its file name."""
    return use.partition(_NOTED)[0]


def last(store: str, name: str) -> dict[str, float]:
    """Return when an image was last used, in seconds since the epoch, by the uses' file names.

    For others than the store's owner: by names without a node.
    """
    folder = os.path.join(store, IMAGES, USED, name)
    try:
        with os.scandir(folder) as listing:
            return {entry.name: entry.stat(follow_symlinks=False).st_mtime for entry in listing}
    except FileNotFoundError:
        return {}
    except PermissionError:
        return _leases(store, name)


def _leases(store: str, name: str) -> dict[str, float]:
    """Return what `last` does for others than the store's owner."""
    found = {}
    for use in ("", _NOTED):
        with suppress(FileNotFoundError):
            found[use] = os.stat(os.path.join(store, IMAGES, LEASES, name + use), follow_symlinks=False).st_mtime
    return found


def is_recorded_today(store: str, name: str) -> bool:
    """Return whether a node's root has recorded a use within a day. Runs as any user."""
    return _leases(store, name).get("", 0.0) > time.time() - DAY


def is_protected(store: str, name: str, lease: float) -> bool:
    """Return whether an image is protected for at least as long as a note takes to be recorded. Runs as any user.

    `lease` (seconds) is how long a use protects. The last day of one does not count, nor the last half of a short one.
    """
    now = time.time()
    leases = ((lease_of(use, lease), at) for use, at in _leases(store, name).items())
    if any(at > now - max(own - DAY, own / 2) for own, at in leases):
        return True
    return os.path.exists(os.path.join(store, IMAGES, PINNED, name))

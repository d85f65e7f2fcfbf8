"""Use marks: when each node last used an image. They order eviction and protect the images of live jobs. Hot path.

    <store>/images/used/<name>/<node>     empty; its mtime is the last use on that node, to the day
    <store>/images/used/<name>/<node>~<uid>   the same, made of a note of that user's job (notes.py)
    <node's own state>/uses/<name>        empty; its mtime is when this node last made the mark in the store

A write to the shared file system for each job would cost more than the look-up. So a node marks an image in the store
once a day, and notes on its own disk that it has. Nodes do not know each other's jobs, and Slurm is not queried
(docs/architecture.md, rule 8). Instead, an image counts as used by a live job on a node until the policy's `keep.lease`
after that node's last mark, which is longer than any job lasts. What a job's user only claims protects for two days, is
renewed each day while the job runs, and is bounded for each user (docs/threats.md, row 29).
"""

from __future__ import annotations

import os
import time

from warmstart.images.store.layout import IMAGE, IMAGES, USED

DAY = 86400.0
SERVED_LEASE = 2 * DAY  # of a mark that was made of a note; maintenance makes it again each day while the job runs
MOST_SERVED = 16  # images that the notes of one user's jobs protect
_SERVED = "~"  # in the name of such a mark; in no node's name


def is_noted(directory: str, name: str) -> bool:
    """Return whether this node has marked the image in the store within a day; one stat(2) on the local disk."""
    try:
        return 0 <= time.time() - os.stat(f"{directory}/{name}").st_mtime < DAY
    except OSError:
        return False


def note(directory: str, name: str) -> None:
    """Note that this node has just marked the image in the store. Raises `OSError` if the local disk fails."""
    from warmstart.host.files import ensure_path

    ensure_path(directory, 0o700)
    _touch(f"{directory}/{name}", None)


def mark(store: str, name: str, node: str) -> None:
    """Mark in the store that the node uses the image. Runs as the store's owner; raises `OSError`."""
    from warmstart.host.files import ensure_dir, opened_dir
    from warmstart.images.store.published import opened_folder

    with opened_folder(store, USED) as used:
        ensure_dir(name, 0o755, used)
        with opened_dir(name, used) as folder:
            _touch(node, folder)


def mark_served(store: str, names: list[str], node: str, uid: int) -> int:
    """Mark images that steps of a user have used (notes.py), as `mark` does; return the number of new marks.

    Leaves out images that the store does not have, that have such a mark of today, and those beyond `MOST_SERVED`.
    """
    own = f"{node}{_SERVED}{uid}"
    day_ago = time.time() - DAY
    there = [name for name in names if os.path.exists(os.path.join(store, IMAGES, name + IMAGE))]
    wanted = [name for name in there if last(store, name).get(own, 0.0) <= day_ago]
    protected = _served(store, uid) if wanted else set()
    made = 0
    for name in wanted:
        if name in protected or len(protected) < MOST_SERVED:
            mark(store, name, own)
            protected.add(name)
            made += 1
    return made


def _served(store: str, uid: int) -> set[str]:
    """Return the images that the notes of a user's jobs protect, on any node."""
    now = time.time()
    images = {file.removesuffix(IMAGE) for file in os.listdir(os.path.join(store, IMAGES)) if file.endswith(IMAGE)}
    return {
        name
        for name in images
        for mark, at in last(store, name).items()
        if mark.endswith(f"{_SERVED}{uid}") and now - at < SERVED_LEASE
    }


def lease_of(mark: str, lease: float) -> float:
    """Return for how many seconds a mark protects, by its name; `lease` is that of the policy."""
    return min(lease, SERVED_LEASE) if _SERVED in mark else lease


def node_of(mark: str) -> str:
    """Return the node that made a mark."""
    return mark.partition(_SERVED)[0]


def last(store: str, name: str) -> dict[str, float]:
    """Return the times of an image's marks by name, in seconds since the epoch. Runs as the store's owner."""
    folder = os.path.join(store, IMAGES, USED, name)
    try:
        with os.scandir(folder) as found:
            return {entry.name: entry.stat(follow_symlinks=False).st_mtime for entry in found}
    except FileNotFoundError:
        return {}


def _touch(name: str, folder: int | None) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        os.utime(fd)
    finally:
        os.close(fd)

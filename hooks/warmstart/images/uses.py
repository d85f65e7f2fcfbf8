"""Use marks: when each node last used an image. They order eviction and protect the images of live jobs. Hot path.

    <store>/images/used/<name>/<node>     empty; its mtime is the last use on that node, to the day
    <node's own state>/uses/<name>        empty; its mtime is when this node last made the mark in the store

A write to the shared file system for each job would cost more than the look-up. So a node marks an image in the store
once a day, and notes on its own disk that it has. Nodes do not know each other's jobs, and Slurm is not queried
(docs/architecture.md, rule 8). Instead, an image counts as used by a live job on a node until the policy's `keep.lease`
after that node's last mark, which is longer than any job lasts.
"""

from __future__ import annotations

import os
import time

from warmstart.images.layout import IMAGE, IMAGES, USED

DAY = 86400.0


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
    from warmstart.images.published import opened_folder

    with opened_folder(store, USED) as used:
        ensure_dir(name, 0o755, used)
        with opened_dir(name, used) as folder:
            _touch(node, folder)


def mark_served(store: str, name: str, node: str) -> bool:
    """Mark an image that a step has used (usage_notes.py), as `mark` does; False if the store does not have it."""
    if not os.path.exists(os.path.join(store, IMAGES, name + IMAGE)):
        return False
    mark(store, name, node)
    return True


def last(store: str, name: str) -> dict[str, float]:
    """Return when each node last used the image, in seconds since the epoch. Runs as the store's owner."""
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

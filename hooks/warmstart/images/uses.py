"""When each node last used an image: what eviction goes by, and what protects the images of live jobs.

    <store>/images/used/<name>/<node>     empty; its mtime is the last use there, to the day
    <node's own state>/uses/<name>        the same, on the local disk: when the store was told

A write for each job on the shared file system would cost more than the look-up. So a node tells the store once a day
for each image, and its own disk says whether it has. No node knows another's jobs, and Slurm is not asked
(docs/architecture.md, rule 8): an image counts as used by a live job on a node for as long after that node's last mark
as the policy's `keep.lease` says, which is longer than any job lasts. Hot path.
"""

from __future__ import annotations

import os
import time

from warmstart.images.layout import IMAGE, IMAGES, USED

DAY = 86400.0


def is_noted(directory: str, name: str) -> bool:
    """Tell whether this node has told the store of its use within a day; one call on the local disk."""
    try:
        return 0 <= time.time() - os.stat(f"{directory}/{name}").st_mtime < DAY
    except OSError:
        return False


def note(directory: str, name: str) -> None:
    """Write down that the store was told now. `OSError` where the local disk takes nothing."""
    from warmstart.host.files import ensure_path

    ensure_path(directory, 0o700)
    _touch(f"{directory}/{name}", None)


def mark(store: str, name: str, node: str) -> None:
    """Tell the store that the node uses the image. Runs as the store's owner."""
    from warmstart.host.files import ensure_dir, opened_dir
    from warmstart.images.published import opened_folder

    with opened_folder(store, USED) as used:
        ensure_dir(name, 0o755, used)
        with opened_dir(name, used) as folder:
            _touch(node, folder)


def mark_served(store: str, name: str, node: str) -> bool:
    """Mark an image that a step was served (usage_notes.py); False if the store does not have it. As `mark`."""
    if not os.path.exists(os.path.join(store, IMAGES, name + IMAGE)):
        return False
    mark(store, name, node)
    return True


def last(store: str, name: str) -> dict[str, float]:
    """Return the nodes that used the image, and when (seconds since the epoch)."""
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

"""What a step was served from the store by the pyxis importer, and how the store learns of it.

The importer runs as the job's user, who can't mark an image in the store (uses.py). So it leaves a note in the job's
own directory, which this node's maintenance, and the job's epilog, make a mark of:

    <workspace>/<node>/<jobid>.<run>/tmp/warmstart-images/.served-<image name>     empty, the user's

Until then the image may be evicted, unless a mark still holds for longer than that takes: without one the step gets a
copy of its own (own_scope.py). A note is a name and nothing more: one of an image that is there is believed, since
whoever can write it could have asked for the image as well.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from warmstart.host.deadline import Deadline
from warmstart.host.files import PATH, mount_id, opened_dir
from warmstart.images import uses
from warmstart.images.client import ImageStoreClient
from warmstart.images.inventory import PINNED
from warmstart.images.layout import IMAGES

FOLDER = "warmstart-images"
NOTE = ".served-"
MOST = 64  # notes of one job
LOOKED_AT = 1000  # names in its directory
_NAME = re.compile(r"(adopted-)?[0-9a-f]{64}\.[a-z0-9_]{1,32}\.[a-z0-9]{1,32}")


def is_held(store: str, name: str, lease: float) -> bool:
    """Tell whether an image stays for at least as long as a note takes to become a mark; as any user.

    `lease` in seconds: how long a mark protects. A mark's last day does not count, nor the last half of a short lease.
    """
    latest = time.time() - max(lease - uses.DAY, lease / 2)
    folder = os.path.join(store, IMAGES, uses.USED, name)
    with suppress(FileNotFoundError), os.scandir(folder) as marks:
        if any(mark.stat(follow_symlinks=False).st_mtime > latest for mark in marks):
            return True
    return os.path.exists(os.path.join(store, IMAGES, PINNED, name))


def note(job_tmp: str, name: str) -> None:
    """Leave word that this job was served an image; `OSError`. As the job's user."""
    folder = f"{job_tmp}/{FOLDER}"
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    with opened_dir(folder) as fd:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(NOTE + name, flags, 0o600, dir_fd=fd))


def mark_noted(run: int, notes: str, *, node: str, store: ImageStoreClient, deadline: Deadline) -> int:
    """Mark what a job's notes say; returns how many marks were made.

    `run` is the open directory of a job's run, `notes` that of this node's own memory (uses.py). Raises `StoreError`,
    and `OSError` for a local disk that fails.
    """
    made = 0
    for name in _notes(run):
        if not uses.is_noted(notes, name) and store.mark_served(name, node, deadline):
            uses.note(notes, name)
            made += 1
    return made


def _notes(run: int) -> Iterator[str]:
    """Yield the names that a job has noted; what the job's user made of his directory ends it."""
    with (
        suppress(OSError),
        _open_on_same_mount("tmp", run) as tmp,
        _open_on_same_mount(FOLDER, tmp) as fd,
        os.scandir(fd) as found,
    ):
        left = MOST
        for _, entry in zip(range(LOOKED_AT), found, strict=False):
            name = entry.name.removeprefix(NOTE)
            if left and name != entry.name and _NAME.fullmatch(name):
                left -= 1
                yield name


@contextmanager
def _open_on_same_mount(name: str, parent: int) -> Iterator[int]:
    """Open a directory on its parent's mount; `EXDEV` for what the job has mounted there, whose daemon may not answer.

    O_PATH asks nobody.
    """
    path = os.open(name, PATH, dir_fd=parent)
    try:
        if mount_id(path) != mount_id(parent):
            raise OSError(errno.EXDEV, "something is mounted there", name)
        with opened_dir(".", path) as fd:
            yield fd
    finally:
        os.close(path)

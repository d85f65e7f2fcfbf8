"""Notes of the store's images that a job's steps used, left by the job's user and collected by root.

The pyxis importer runs as the job's user, who cannot mark the use of an image in the store. It leaves an empty note:

    <workspace>/<node>/<jobid>.<run>/tmp/warmstart-images/.served-<image name>

The epilog and maintenance turn notes into marks. Until then the image may be evicted, unless an older mark outlasts the
step; without one the step gets a copy. Anybody can forge notes, so what they protect is bounded for each user, and ends
two days later (uses.py).
Every epilog loads this module, so it imports nothing slow.
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.host.deadline import Deadline
from warmstart.host.files import PATH, mount_id, opened_dir
from warmstart.images.store import uses
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import IMAGES, PINNED, USED
from warmstart.lean import Iterator, contextmanager, suppress

FOLDER = "warmstart-images"
NOTE = ".served-"
MOST = 64  # of one job's notes are read
LOOKED_AT = 1000  # of the names in a job's directory are read
_NAME = r"(adopted-)?[0-9a-f]{64}\.[a-z0-9_]{1,32}\.[a-z0-9]{1,32}"


def is_held(store: str, name: str, lease: float) -> bool:
    """Return whether an image is protected for at least as long as a note takes to become a mark. Runs as any user.

    `lease` (seconds) is how long a mark protects. The last day of a mark does not count, nor the last half of a short
    lease.
    """
    now = time.time()

    def outlasts(mark: os.DirEntry[str]) -> bool:
        own = uses.lease_of(mark.name, lease)
        return mark.stat(follow_symlinks=False).st_mtime > now - max(own - uses.DAY, own / 2)

    folder = os.path.join(store, IMAGES, USED, name)
    with suppress(FileNotFoundError), os.scandir(folder) as marks:
        if any(map(outlasts, marks)):
            return True
    return os.path.exists(os.path.join(store, IMAGES, PINNED, name))


def note(job_tmp: str, name: str) -> None:
    """Leave a note that this job uses an image. Runs as the job's user; raises `OSError`."""
    folder = f"{job_tmp}/{FOLDER}"
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    with opened_dir(folder) as fd:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(NOTE + name, flags, 0o600, dir_fd=fd))


def mark_noted(run: int, notes: str, *, node: str, store: ImageStoreClient, deadline: Deadline) -> int:
    """Turn a job's notes into marks; return the number of new marks.

    `run` is the open directory of a job's run, `notes` the path of this node's own notes (uses.py): what a hook of
    this node has marked needs no other mark. Raises `StoreError`, and `OSError` if the local disk fails.
    """
    names = [name for name in _notes(run) if not uses.is_noted(notes, name)]
    if not names:
        return 0
    # The job's user owns TMPDIR in root's directory of the run, and cannot give it away.
    uid = os.stat("tmp", dir_fd=run, follow_symlinks=False).st_uid
    return store.mark_served(names, node, uid, deadline)


def _notes(run: int) -> Iterator[str]:
    """Yield the image names in a job's notes; stop early if the user has made the directory unreadable."""
    with (
        suppress(OSError),
        _open_on_same_mount("tmp", run) as tmp,
        _open_on_same_mount(FOLDER, tmp) as fd,
        os.scandir(fd) as found,
    ):
        import re  # few jobs leave notes

        left = MOST
        for _, entry in zip(range(LOOKED_AT), found, strict=False):
            name = entry.name.removeprefix(NOTE)
            if left and name != entry.name and re.fullmatch(_NAME, name):
                left -= 1
                yield name


@contextmanager
def _open_on_same_mount(name: str, parent: int) -> Iterator[int]:
    """Open a directory on its parent's mount; `EXDEV` if the job has mounted something there.

    A FUSE daemon of the job's may never answer, so the first open uses O_PATH, which does not reach it.
    """
    path = os.open(name, PATH, dir_fd=parent)
    try:
        if mount_id(path) != mount_id(parent):
            raise OSError(errno.EXDEV, "something is mounted there", name)
        with opened_dir(".", path) as fd:
            yield fd
    finally:
        os.close(path)

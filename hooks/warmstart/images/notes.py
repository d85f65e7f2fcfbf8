"""Notes of the store's images that a job's steps used: left by the job's user, collected by root. Runs as root.

The pyxis importer runs as the job's user, who cannot record a use in the store. It leaves an empty note:

    <workspace>/<jobid>.<restarts>/tmp/warmstart-images/.used-<image name>

The epilog and maintenance record the uses that were noted. Until then the image may be evicted, unless an older use
protects it for long enough; else the step gets a copy. Anybody can forge notes, so what they protect is bounded for
each user, and ends two days later (store/uses.py).
Every epilog loads this module, so it imports nothing slow.
"""

from __future__ import annotations

import os

from warmstart.host.deadline import Deadline
from warmstart.host.untrusted import opened_of_job
from warmstart.lean import TYPE_CHECKING, Iterator, suppress

if TYPE_CHECKING:
    from warmstart.store.client import StoreClient

FOLDER = "warmstart-images"
NOTE = ".used-"
MOST = 64  # of one job's notes are read
LOOKED_AT = 1000  # of the names in a job's directory are read
_NAME = r"[0-9a-f]{64}\.[a-z0-9_]{1,32}\.[a-z0-9]{1,32}"


def collect(run: int, known: str, *, node: str, store: StoreClient, deadline: Deadline) -> int:
    """Record the uses that a job has noted; return how many were new.

    `run` is the open directory of a job's run, `known` as for `ImageStoreClient.record_use`: a use that a hook of this
    node has recorded counts. Raises `StoreError`, and `OSError` if the local disk fails.
    """
    if not (noted := [*_notes(run)]):
        return 0
    from warmstart.images.store import uses
    from warmstart.images.store.client import ImageStoreClient, is_recorded

    names = [name for name in noted if not is_recorded(known, name)]

    # The job's user owns TMPDIR in root's directory of the run, and cannot give it away.
    uid = os.stat("tmp", dir_fd=run, follow_symlinks=False).st_uid
    images = ImageStoreClient(store.worker, store.path)
    return images.run(deadline, uses.record_noted, names, node, uid) if names else 0


def _notes(run: int) -> Iterator[str]:
    """Yield the image names in a job's notes; stop early if the user has made the directory unreadable."""
    with (
        suppress(OSError),
        opened_of_job("tmp", run) as tmp,
        opened_of_job(FOLDER, tmp) as fd,
        os.scandir(fd) as listing,
    ):
        import re  # few jobs leave notes

        left = MOST
        for _, entry in zip(range(LOOKED_AT), listing, strict=False):
            name = entry.name.removeprefix(NOTE)
            if left and name != entry.name and re.fullmatch(_NAME, name):
                left -= 1
                yield name

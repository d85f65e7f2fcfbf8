"""Depth `list`: every inode and directory of an image can be read. Before publishing (design, image store).

The parser is unsquashfs, under the validating account, without network, privileges or files of its own, on a
descriptor of the inode that will be copied. Depth `superblock` is `lookup.what_is_wrong`.
"""

from __future__ import annotations

from warmstart.host import children
from warmstart.host.deadline import Deadline
from warmstart.host.worker import Identity
from warmstart.images.superblock import ImageInvalid

UNSQUASHFS = "/usr/bin/unsquashfs"
PRLIMIT = "/usr/bin/prlimit"
MOST_MEMORY = 4 << 30


def check_listing(fd: int, validator: Identity, deadline: Deadline) -> None:
    """Raise `ImageInvalid` with unsquashfs's last words unless it can list all of the image.

    The name in /proc opens the inode itself: its directory is root's business, its mode is 0444.
    """
    ended = children.run_alone(
        [
            *(PRLIMIT, f"--as={MOST_MEMORY}", "--fsize=0", "--core=0", "--"),
            *(UNSQUASHFS, "-processors", "1", "-lls", f"/proc/self/fd/{fd}"),
        ],
        deadline=deadline,
        identity=validator,
        env={},
        cwd="/",
        network=False,
        keep=[fd],
    )
    if ended.status != 0:
        raise ImageInvalid(problem=f"unsquashfs can't list it: {ended.complaint()}")

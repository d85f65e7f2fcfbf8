"""Depth `list` of the proof that an image is whole: every inode and directory can be read, before publishing.

The parser is unsquashfs, under the validating account, without network, privileges or files of its own, on a
descriptor of the inode that will be copied. docs/images.md says what each depth catches; the others are
`layout.what_is_wrong` (`superblock`, at every use) and `published.check_bytes` (`full`).
"""

from __future__ import annotations

from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.images.squashfs import ImageInvalid

UNSQUASHFS = "/usr/bin/unsquashfs"
PRLIMIT = "/usr/bin/prlimit"
MOST_MEMORY = 4 << 30


def check_listing(fd: int, validator: Identity, deadline: Deadline) -> None:
    """Raise `ImageInvalid` with unsquashfs's last words unless it can list all of the image.

    The name in /proc opens the inode itself; its mode is 0444.
    """
    completed = process.run_alone(
        [
            *(PRLIMIT, f"--as={MOST_MEMORY}", "--fsize=0", "--core=0", "--"),
            *(UNSQUASHFS, "-processors", "1", "-lls", f"/proc/self/fd/{fd}"),
        ],
        deadline=deadline,
        identity=validator,
        env={},
        cwd="/",
        keep=[fd],
    )
    if completed.status != 0:
        raise ImageInvalid(problem=f"unsquashfs can't list it: {completed.complaint()}")

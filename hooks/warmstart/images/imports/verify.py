"""Check that every inode and directory of an image can be read (depth `list`), before it is published.

The parser is unsquashfs. It runs as the validator, without network, privileges or writes to files, on a descriptor of
the inode that will be copied. docs/reference/images.md says what each depth catches; the others are
`layout.superblock_problem` (`superblock`, at every use) and `published.check_bytes` (`full`).
"""

from __future__ import annotations

from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.images.squashfs import ImageInvalid

UNSQUASHFS = "/usr/bin/unsquashfs"
PRLIMIT = "/usr/bin/prlimit"
MOST_MEMORY = 4 << 30  # bytes


def check_listing(fd: int, validator: Identity, deadline: Deadline) -> None:
    """Raise `ImageInvalid`, with the last line of unsquashfs's stderr, unless it can list the whole image.

    The path in /proc opens the inode itself, which the validator can read because its mode is 0444. For each name it
    would look up an owner and read the time zone's file: neither is needed.
    """
    completed = process.run_alone(
        [
            PRLIMIT, f"--as={MOST_MEMORY}", "--fsize=0", "--core=0", "--",
            UNSQUASHFS, "-processors", "1", "-lln", f"/proc/self/fd/{fd}",
        ],
        deadline=deadline,
        identity=validator,
        env={"TZ": "UTC0"},
        cwd="/",
        keep=[fd],
    )  # fmt: skip
    if completed.status != 0:
        raise ImageInvalid(problem=f"unsquashfs can't list it: {completed.complaint()}")

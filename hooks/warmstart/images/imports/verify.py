"""Check that every inode and directory of an image can be read (depth `list`), before it is published, and count them.

The parser is unsquashfs. It runs as the validator, without network, privileges or writes to files, on a descriptor of
the inode that will be copied. docs/reference/images.md says what each depth catches; the others are
`layout.superblock_problem` (`superblock`, at every use) and `published.check_bytes` (`full`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.images.squashfs import ImageInvalid

UNSQUASHFS = "/usr/bin/unsquashfs"
PRLIMIT = "/usr/bin/prlimit"
MOST_MEMORY = 4 << 30  # bytes
# Prints how many files and bytes an image has. A hostile name may add lines, and so only more; what no number of bytes
# can be ends it. A program that dies may have begun a line. A shell that reads lines takes as long as unsquashfs; `awk`
# may be a link to where nobody can see.
_COUNT = """awk=$(command -v mawk || command -v gawk) || exec "$@" >/dev/null
{ "$@" || printf '\\nfailed %d\\n' $?; } | LC_ALL=C $awk '
    /^failed [0-9]+$/ { status = $2 == 126 || $2 == 127 || $2 == 137 ? $2 : 1; exit }
    length($3) > 16 { status = 3; exit }
    $3 ~ /^[0-9]+$/ { bytes += $3 }
    END { if (!status && bytes >= 1e18) status = 3; if (status) exit status; printf "%d %.0f\\n", NR, bytes }'"""
_COUNTED = re.compile(rb"(\d{1,18}) (\d{1,18})\n")
_TOO_MANY = 3  # the status
_AGAIN = (126, 127, 137, -9)  # of a program that did not start, or was killed, as for want of memory
ENVIRONMENT = {"TZ": "UTC0"}  # of the command


class Listing(NamedTuple):
    """How much an image has."""

    files: int  # with directories; 0 if nobody has counted
    bytes: int  # of all its files


def listing(fd: int) -> list[str]:
    """Return the command that lists an open image for `listed`.

    The path in /proc opens the inode itself, which an account can read because its mode is 0444. For each name
    unsquashfs would look up an owner, and read the time zone's file (`ENVIRONMENT`): neither is needed.
    """
    return ["/bin/sh", "-c", _COUNT, "sh", UNSQUASHFS, "-processors", "1", "-lln", f"/proc/self/fd/{fd}"]


def listed(completed: process.CompletedProgram) -> Listing:
    """Return what the command of `listing` has counted: nothing without mawk or gawk.

    Raises `ImageInvalid`, with the last line of unsquashfs's stderr, unless it could list the whole image. Its field
    `again` says whether that is no fault of the image.
    """
    if completed.status:
        problem = "more bytes than a disk can have" if completed.status == _TOO_MANY else completed.complaint()
        raise ImageInvalid(problem=f"unsquashfs can't list it: {problem}", again=completed.status in _AGAIN)
    counted = _COUNTED.fullmatch(completed.stdout)
    return Listing(int(counted[1]), int(counted[2])) if counted else Listing(0, 0)


def check_listing(fd: int, validator: Identity, deadline: Deadline) -> Listing:
    """List an image, and return how much it has; raises as `listed`."""
    completed = process.run_alone(
        [PRLIMIT, f"--as={MOST_MEMORY}", "--fsize=0", "--core=0", "--", *listing(fd)],
        deadline=deadline,
        identity=validator,
        env=ENVIRONMENT,
        cwd="/",
        keep=[fd],
    )
    return listed(completed)

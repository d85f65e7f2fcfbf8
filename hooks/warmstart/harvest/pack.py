"""Pack the validated entries of a stage into one squashfs (docs/architecture.md, rule 3).

The stage has only regular files and directories that root made (`collect.Stage`), without xattrs, and mksquashfs adds
none. With the table for exports, which is mksquashfs's default, an overlay finds a file's inode number again after the
file was linked or changed. All inodes belong to root. Modes are 0666 and 0777, because a job writes as "others" where a
bundle cannot be id-mapped; bundles are only mounted below private directories. zstd at level 3 was chosen by
measurement (docs/store-format.md).
"""

from __future__ import annotations

import os

from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.files import DiskFailed
from warmstart.lean import Callable, suppress

MKSQUASHFS = "/usr/bin/mksquashfs"


def pack(
    stage: str,
    out: str,
    deadline: Deadline,
    watch: Callable[[], None] | None = None,
    own: tuple[int, int] | None = None,
) -> int:
    """Pack the directory `stage` into the new file `out`; return a read-only descriptor of it.

    With `own`, a uid and a gid, all inodes belong to these and have the modes that they have in the stage.

    Only root can reach either path. `watch` is called every second; an exception from it ends the packing. The same
    content gives the same bytes except for the times of directories.
    Raises `DiskFailed` or `ProgramTooSlow`, and removes `out`.
    """
    if own is None:
        owner = ["-all-root", "-action", "chmod(a=rw)@type(f)", "-action", "chmod(a=rwx)@type(d)&&!depth(0)"]
    else:
        owner = ["-force-uid", str(own[0]), "-force-gid", str(own[1])]
    try:
        packed = process.run(
            [
                MKSQUASHFS, stage, out, "-noappend", "-no-recovery", "-no-xattrs", *owner,
                "-root-mode", "0700", "-mkfs-time", "0", "-comp", "zstd", "-Xcompression-level", "3",
                "-processors", "2", "-mem", "256M", "-no-progress", "-quiet",
            ],
            deadline=deadline,
            watch=watch,
        )  # fmt: skip
        if packed.status != 0:
            raise DiskFailed(what=out, problem=packed.complaint())
        return os.open(out, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(out)
        raise

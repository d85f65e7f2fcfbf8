"""Pack what the validator left in the stage into one squashfs, inode by inode root's (docs/architecture.md, rule 3).

The stage holds nothing but regular files and directories that root made (`collect.Stage`), without xattrs; mksquashfs
adds none. Modes are 0666 and 0777: where a bundle can't be id-mapped a job writes to it as "others", and whoever shows
a bundle does it below a private directory. zstd at level 3, chosen by measurement (docs/store-format.md).
"""

from __future__ import annotations

import os
from contextlib import suppress

from warmstart.errors import ResourceError
from warmstart.host import process
from warmstart.host.deadline import Deadline

MKSQUASHFS = "/usr/bin/mksquashfs"


class PackFailed(ResourceError):
    """mksquashfs failed: mostly the node's disk is full."""

    code = "pack-failed"
    template = "{path}: {problem}"
    hint = "is there space left on the disk of the node's state?"


def pack(stage: str, out: str, deadline: Deadline) -> int:
    """Pack the directory `stage` into the new file `out`; return a descriptor of it, for reading.

    Both lie in directories that are root's alone. `PackFailed`, `ProgramTooSlow`; then `out` is not there.
    The same content gives the same bytes but for the directories' times.
    """
    try:
        packed = process.run(
            [
                *(
                    MKSQUASHFS,
                    stage,
                    out,
                    "-noappend",
                    "-no-recovery",
                    "-no-xattrs",
                    "-no-exports",
                    "-all-root",
                ),
                *("-action", "chmod(a=rw)@type(f)", "-action", "chmod(a=rwx)@type(d)&&!depth(0)"),
                *("-root-mode", "0700", "-mkfs-time", "0", "-comp", "zstd", "-Xcompression-level", "3"),
                *("-processors", "2", "-mem", "256M", "-no-progress", "-quiet"),
            ],
            deadline=deadline,
        )
        if packed.status != 0:
            raise PackFailed(path=out, problem=packed.complaint())
        return os.open(out, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(out)
        raise

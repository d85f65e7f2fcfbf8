"""Seed by extraction, where overlays cannot be mounted: unsquashfs under the job's uid.

Root never parses a bundle. The process has the job's uid and gid, no network and no privileges, and gets the bundle
as an open file. It is outside the job's cgroup, so its real uid is the validator's: whoever could trace it would run
outside the job's limits (docs/threats.md, row 28). Other processes of the job's user can stop and kill it, and change
the same files, which harms only that user. So root trusts no result, only that the process ended: the names that count
as seeded come from the manifest.

unsquashfs (verified with 4.5.1) opens the file system, the list and the destination through /proc/self/fd, so only
the mode of the inode matters and not that of parent directories. The list has one path per line, each
after a backslash, because without it leading blanks and a leading backslash are skipped and `#` starts a comment. The
list is searched linearly, so a whole bundle is extracted without one.

Afterwards modes and times are restored: the modes in a bundle are made for layers (0666, 0777), and squashfs cuts
times to seconds, which makes ninja rebuild. `restore_times` runs under the job's uid, too, and is not trusted either.
"""

from __future__ import annotations

import os

from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.files import DiskFailed, closing, open_regular, opened_dir, write_all
from warmstart.host.identity import Identity
from warmstart.lean import NamedTuple
from warmstart.seed.layers import parents

UNSQUASHFS = "/usr/bin/unsquashfs"
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


class Source(NamedTuple):
    """A bundle to extract, whole or in part."""

    path: str
    files: list[str] | None  # paths to extract; None for all


def extract(  # noqa: PLR0917 - sources, target, whose they are to be, and until when
    sources: list[Source], parent_fd: int, name: str, identity: Identity, real_uid: int, deadline: Deadline
) -> None:
    """Extract bundles as `identity` into the directory `name` below `parent_fd`, which `identity` owns.

    Modes are those of the bundle: 0777 for directories, 0666 for files, 0700 for `name` itself. Owner and group are
    `identity`'s; mtimes are in whole seconds (`restore_times` does the rest). No two sources may have a file in common.
    `real_uid` is the process's real uid (`process.run_alone`). Raises `DiskFailed` or `ProgramTooSlow`.
    """
    for source in sources:
        if source.files != []:  # unsquashfs extracts everything if the list is empty
            _extract_one(source, parent_fd, name, identity, real_uid, deadline)


def _extract_one(  # noqa: PLR0917 - `extract`'s arguments
    source: Source, parent_fd: int, name: str, identity: Identity, real_uid: int, deadline: Deadline
) -> None:
    with closing(open_regular(source.path)) as bundle, closing(os.memfd_create("files")) as listed:
        only: list[str] = []
        if source.files is not None:
            write_all(listed, b"".join(b"\\%b\n" % os.fsencode(path) for path in source.files))
            only = ["-ef", f"/proc/self/fd/{listed}"]
        extraction = process.run_alone(
            [
                *(UNSQUASHFS, "-no-xattrs", "-no-wildcards", "-strict-errors", "-no-progress", "-quiet"),
                *("-force", "-processors", "2", "-data-queue", "32", "-frag-queue", "32"),
                *("-dest", f"/proc/self/fd/{parent_fd}/{name}", *only, f"/proc/self/fd/{bundle}"),
            ],
            deadline=deadline,
            identity=identity,
            env={},
            cwd="/",
            keep=[bundle, parent_fd, listed],
            real_uid=real_uid,
        )
    if extraction.status != 0:
        raise DiskFailed(what=f"cannot unpack {source.path} into the job's cache", problem=_reason(extraction))


def _reason(extraction: process.CompletedProgram) -> str:
    """Return the cause from unsquashfs's first message ("Write on output file failed because …"), else its stderr."""
    _, because, reason = extraction.stderr.decode("utf-8", "replace").partition(" because ")
    line = reason.partition("\n")[0].strip()
    return line if because and line.isprintable() else extraction.complaint()


def restore_times(cache: int, subdir: str, times: dict[str, int]) -> None:
    """Set modes and mtimes of the extracted files below `subdir` of the descriptor `cache`.

    `times` maps paths to nanoseconds since the epoch. Raises `OSError` if a file is missing.
    """
    with opened_dir(subdir, cache) as top:
        for folder in sorted({folder for path in times for folder in parents(path)}):
            os.chmod(folder, _FOLDER_MODE, dir_fd=top)
        for path, mtime_ns in times.items():
            os.chmod(path, _FILE_MODE, dir_fd=top)
            os.utime(path, ns=(mtime_ns, mtime_ns), dir_fd=top, follow_symlinks=False)


def make_directory(cache: int, subdir: str) -> None:
    """Make an empty directory `subdir`, mode 0700, in the descriptor `cache`."""
    os.mkdir(subdir, 0o700, dir_fd=cache)

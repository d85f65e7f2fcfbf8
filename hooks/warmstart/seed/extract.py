"""Seed by extraction, where overlays cannot be mounted: unsquashfs under the job's uid.

Root never parses a bundle. The process has the job's uid and gid, no network and no privileges, and gets the bundle
as an open file. Links that another process of the user plants harm that user alone, and the process is not believed:
the names that count as seeded are the manifest's.

unsquashfs 4.5.1 (run) opens the file system, the list and the destination through /proc/self/fd, which the inode's
mode allows whatever the directories above say. The list has one path per line; leading blanks are skipped and `#`
starts a comment (`layout.is_plain_path` refuses those). It searches the list name by name, so no list is
given for a whole bundle.

Afterwards modes and times are restored: a bundle's modes suit layers (0666, 0777), and squashfs cuts times to
seconds, which makes ninja rebuild. `restore_times` runs as the job's uid in that user's own directory; nothing it
says is believed.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from typing import NamedTuple

from warmstart.errors import ResourceError
from warmstart.host import process
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import open_regular, opened_dir, remove_tree, write_all
from warmstart.host.identity import Identity

UNSQUASHFS = "/usr/bin/unsquashfs"
PRLIMIT = "/usr/bin/prlimit"
_REMOVAL = 10.0  # seconds for what a failed extraction left
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


class ExtractionFailed(ResourceError):
    """A bundle could not be extracted: mostly the job's disk is full."""

    code = "extraction-failed"
    template = "cannot unpack {path} into the job's cache: {problem}"
    hint = "is there space left where the workspace is? the job runs cold"


class Source(NamedTuple):
    """A bundle to extract, and what of it."""

    path: str
    files: list[str] | None  # None: all


class Bounds(NamedTuple):
    """Limits of an extraction on a disk that is not a job's: a few kilobytes of a squashfs can be a terabyte."""

    largest: int  # bytes that a file may have
    watch: Callable[[], None]  # called every second; what it raises ends the extraction


def extract(  # noqa: PLR0917 - what, where to, as whom
    sources: list[Source],
    parent_fd: int,
    name: str,
    identity: Identity,
    deadline: Deadline,
    bounds: Bounds | None = None,
) -> None:
    """Extract bundles into the directory `name` below `parent_fd`, which is `identity`'s.

    Directories become 0777 and files 0666 as they were packed, `name` itself 0700; all of `identity`'s uid
    and gid, mtimes in whole seconds (`restore_times` does the rest). The sources hold no file in common
    (`bundles.offers`). On failure `name` is removed with all it holds, since half an entry is worse than none:
    `ExtractionFailed`, `ProgramTooSlow`.
    """
    try:
        for source in sources:
            if source.files == []:  # to unsquashfs an empty list means everything
                continue
            _extract_one(source, parent_fd, name, identity, deadline, bounds)
    except BaseException:
        remove_tree(parent_fd, name, after(_REMOVAL))
        raise


def _extract_one(  # noqa: PLR0917 - `extract`'s arguments
    source: Source, parent_fd: int, name: str, identity: Identity, deadline: Deadline, bounds: Bounds | None
) -> None:
    bundle = open_regular(source.path)
    listed = -1
    try:
        only: list[str] = []
        if source.files is not None:
            listed = os.memfd_create("files")
            write_all(listed, "".join(f"{path}\n" for path in source.files).encode())
            only = ["-ef", f"/proc/self/fd/{listed}"]
        extraction = process.run_alone(
            [
                *((PRLIMIT, f"--fsize={bounds.largest}", "--core=0", "--") if bounds else ()),
                *(UNSQUASHFS, "-no-xattrs", "-no-wildcards", "-strict-errors", "-no-progress", "-quiet"),
                *("-force", "-processors", "2", "-data-queue", "32", "-frag-queue", "32"),
                *("-dest", f"/proc/self/fd/{parent_fd}/{name}", *only, f"/proc/self/fd/{bundle}"),
            ],
            deadline=deadline,
            identity=identity,
            env={},
            cwd="/",
            keep=[bundle, parent_fd, *([listed] if listed >= 0 else [])],
            watch=bounds and bounds.watch,
        )
    finally:
        os.close(bundle)
        if listed >= 0:
            os.close(listed)
    if extraction.status != 0:
        raise ExtractionFailed(path=source.path, problem=_reason(extraction))


def _reason(extraction: process.CompletedProgram) -> str:
    """Return why it failed: unsquashfs says that first ("Write on output file failed because …"), then where."""
    _, because, reason = extraction.stderr.decode("utf-8", "replace").partition(" because ")
    line = reason.partition("\n")[0].strip()
    return line if because and line.isprintable() else extraction.complaint()


def restore_times(cache: int, subdir: str, times: dict[str, int]) -> None:
    """Give the extracted files below `subdir` of the descriptor `cache` their times (path → nanoseconds) and modes.

    `OSError` where one is not there.
    """
    with opened_dir(subdir, cache) as top:
        for folder in sorted({folder for path in times for folder in _above(path)}):
            os.chmod(folder, _FOLDER_MODE, dir_fd=top)
        for path, mtime_ns in times.items():
            os.chmod(path, _FILE_MODE, dir_fd=top)
            os.utime(path, ns=(mtime_ns, mtime_ns), dir_fd=top, follow_symlinks=False)


def _above(path: str) -> list[str]:
    folders = []
    while path := posixpath.dirname(path):
        folders.append(path)
    return folders

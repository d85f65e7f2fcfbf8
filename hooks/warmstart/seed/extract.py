"""Seed by extraction: unsquashfs with the job's uid, which is handed the bundle open (design, Seed; rule 3).

Root never parses a bundle. The process has nothing but the job's uid and gid, no network, no privileges; so
links that another process of the user plants harm that user alone, and it is not believed: the names that count
as seeded are those of the manifest. Facts about unsquashfs 4.5.1 (run): it opens the file system, the list and
the destination through /proc/self/fd, which the mode of the inode allows whatever that of the directories above;
a list has one path on each line, blanks in front are skipped and `#` starts a comment (`layout.is_plain_path`
refuses those); it searches the list name by name, so a bundle that is wanted whole goes without one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from warmstart.errors import ResourceError
from warmstart.host import process
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import open_regular, remove_tree, write_all
from warmstart.host.identity import Identity

UNSQUASHFS = "/usr/bin/unsquashfs"
PRLIMIT = "/usr/bin/prlimit"
_REMOVAL = 10.0  # seconds for what a failed extraction left


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
    """What holds an extraction on a disk that is not a job's: a few kilobytes of a squashfs can be a terabyte."""

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
    and gid, mtimes in whole seconds (`settle` does the rest). The sources hold no file in common
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
        wanted: list[str] = []
        if source.files is not None:
            listed = os.memfd_create("wanted")
            write_all(listed, "".join(f"{path}\n" for path in source.files).encode())
            wanted = ["-ef", f"/proc/self/fd/{listed}"]
        ended = process.run_alone(
            [
                *((PRLIMIT, f"--fsize={bounds.largest}", "--core=0", "--") if bounds else ()),
                *(UNSQUASHFS, "-no-xattrs", "-no-wildcards", "-strict-errors", "-no-progress", "-quiet"),
                *("-force", "-processors", "2", "-data-queue", "32", "-frag-queue", "32"),
                *("-dest", f"/proc/self/fd/{parent_fd}/{name}", *wanted, f"/proc/self/fd/{bundle}"),
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
    if ended.status != 0:
        raise ExtractionFailed(path=source.path, problem=_reason(ended))


def _reason(ended: process.CompletedProgram) -> str:
    """Return why it failed: unsquashfs says that first ("Write on output file failed because …"), then where."""
    _, because, reason = ended.stderr.decode("utf-8", "replace").partition(" because ")
    line = reason.partition("\n")[0].strip()
    return line if because and line.isprintable() else ended.complaint()

"""TensorRT-RTX's runtime cache: one file (docs/cache-formats.md, TensorRT-RTX).

From the source of Torch-TensorRT; not tried.

Torch-TensorRT reads and writes the file whole while it holds an exclusive flock(2) on `<file>.lock`, which it never
removes. It writes `<file>.tmp` and renames it. A job that compiles something new leaves another file, which takes the
place of the one that the job was seeded with. Root copies it under the same lock.

The tool has no variable for the path: the job must pass the value of `WARMSTART_TRT_RTX_CACHE` to it.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

FILE = "runtime_cache.bin"


def entry_of(path: str) -> str | None:
    """Return the one entry for the cache file. Its lock and temporary file belong to no entry."""
    return FILE if path == FILE else None


def validate(files: EntryFiles) -> None:
    """Require a file that does not end in zeroes: the format is unpublished.

    Catches: an empty file, and one that ends in a page of zeroes. Cannot catch: any other damage. The library is
    documented to refuse a damaged cache and one of another GPU or version; that was not tried.
    """
    from warmstart.profiles.formats import plain

    plain.check_written(files, FILE)


PROFILE = Profile(
    name="trt-rtx",
    variables={"WARMSTART_TRT_RTX_CACHE": f"{{dir}}/{FILE}"},
    defaults={"WARMSTART_TRT_RTX_CACHE": f"{{TMPDIR:/tmp}}/{FILE}"},
    relocation="relocatable",
    facts=("image", "gpu"),
    entry_of=entry_of,
    validate=validate,
    lock=".lock",
    in_step=True,
    experimental=True,
)

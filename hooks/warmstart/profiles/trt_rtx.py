"""TensorRT-RTX's runtime cache: one file that grows.

See docs/cache-formats.md, TensorRT-RTX; known from torch-tensorrt's source.

Torch-TensorRT reads and writes it whole, under `<file>.lock`: flock(2), exclusive, kept when it is released; it
writes `<file>.tmp` and renames that. Every job that compiles something new leaves a larger file, so the newest one
replaces older ones (`keeps`), and it is copied under the same lock.

No variable of the tool names the file: the job hands over `WARMSTART_TRT_RTX_CACHE` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmstart.profiles.contract import Profile

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

FILE = "runtime_cache.bin"


def entry_of(path: str) -> str | None:
    """Return the file itself; its lock and its temporary file are no part of it."""
    return FILE if path == FILE else None


def validate(files: EntryFiles) -> None:
    """Prove what can be proved of a format that nobody has published.

    Catches: an empty file, and one that ends in a page of zeroes. Can't catch: any other damage. The library
    says that it refuses a cache of another GPU or version, and one that is damaged; that was not tried.
    """
    from warmstart.profiles.formats import plain

    plain.check_written(files, FILE)


PROFILE = Profile(
    name="trt-rtx",
    subdir="trt-rtx",
    variables={"WARMSTART_TRT_RTX_CACHE": f"{{dir}}/{FILE}"},
    relocation="relocatable",
    facts=("image", "gpu"),
    entry_of=entry_of,
    validate=validate,
    keeps="newest",
    lock=".lock",
)

"""JAX's persistent compilation cache (docs/cache-formats.md, JAX; tried with JAX on CPU).

Each `<function>-<64 hex>-cache` is an entry: a compressed executable, whose key has the computation, the versions and
the device. JAX writes it in place, so a killed job leaves it cut short; a damaged one is never repaired: every job
warns and compiles again.

XLA's own caches beside it are switched off: their directory is a path in the compiler's options, which are
part of the key up to JAX 0.10, so that with them each cache at another path is cold (11 of 11 misses; 11 hits without).
What autotuning found stays in the executable.

Never harvested: `-atime` and `.lockfile`, which exist where the job sets a maximum size; XLA's caches, where a job
switches them on again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_FILE = r"([A-Za-z0-9_.<>+-]{1,180}-[0-9a-f]{64}-cache)"
# Decompressed: the compile time in four bytes, then the executable.
_LEAST = 5


def validate(files: EntryFiles) -> None:
    """Prove that the compressed executable is whole.

    Catches, of a zlib stream (no `zstandard` in the image): every change, by its checksum. Of a zstd frame: any
    truncation, and what changes a length. Can't catch: an executable that belongs to another key.
    """
    from warmstart.profiles.formats import compressed

    compressed.check(files, files.names[0], least=_LEAST)


PROFILE = Profile(
    name="jax",
    subdir="jax",
    variables={"JAX_COMPILATION_CACHE_DIR": "{dir}", "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"},
    relocation="relocatable",
    facts=("image", "cpu", "gpu"),
    entry_of=named_by(_FILE),  # the path of one executable, which is an entry of its own
    validate=validate,
)

"""JAX's persistent compilation cache (docs/cache-formats.md, JAX; tried with JAX on CPU).

Each `<function>-<64 hex>-cache` is an entry: a compressed executable. Its key covers the computation, the versions and
the device. JAX writes it in place, so a killed job leaves it truncated. JAX never repairs a damaged one: every job
warns and compiles again.

XLA's own caches are switched off. Their directory is a path in the compiler's options, which are part of the key up to
JAX 0.10, so a cache at another path would be cold (11 of 11 misses with them, 11 hits without). The results of
autotuning are in the executable.

If the job sets a maximum size, JAX stores nothing in a cache where `-atime`, the time of its last use, is not beside
each entry (`lru_cache.py`), and bundles have none.

Repeats: nothing. Measured with JAX 0.10 on CPU: of 4 entries 2 differ in the next run, because the time that a
compilation took is in them; with the cache at another path their names differ, too.

Never harvested: `-atime` and `.lockfile`; XLA's caches, if a job switches them on again.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_FILE = r"([^/]+-[0-9a-f]{64}-cache)"
# Decompressed content: four bytes of compile time, then the executable.
_LEAST = 5


def validate(files: EntryFiles) -> None:
    """Require a whole compressed executable.

    Catches every change to a zlib stream, by its checksum; JAX writes these if the image has no `zstandard`. In a zstd
    frame it catches truncation and changed lengths. Cannot catch: an executable that belongs to another key.
    """
    from warmstart.profiles.formats import compressed

    compressed.check(files, files.names[0], least=_LEAST)


PROFILE = Profile(
    name="jax",
    variables={"JAX_COMPILATION_CACHE_DIR": "{dir}", "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"},
    defaults={  # without a directory it keeps nothing
        "JAX_COMPILATION_CACHE_DIR": "",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "xla_gpu_per_fusion_autotune_cache_dir",
    },
    relocation="relocatable",
    facts=("image", "cpu", "gpu"),
    entry_of=named_by(_FILE),  # the path of one executable
    validate=validate,
    in_step=True,
)

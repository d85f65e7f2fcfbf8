"""The CUDA driver's cache of kernels compiled from PTX (docs/cache-formats.md, CUDA ComputeCache).

It has files `<hex>/<hex>/<hash>` and one `index`. The driver writes them in place, and their formats are unpublished.
So the whole cache is one entry, which must have its index. Each kernel that a job adds changes the index: the grown
entry supersedes the one that the job was seeded with. It is valid for one driver and one GPU model, which are in
the namespace. A killed job may leave part of a kernel under its final name, so only caches of successful jobs are
harvested.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

ENTRY = "ComputeCache"
_INDEX = "index"
_KERNEL = r"[0-9a-f]{1,2}/[0-9a-f]{1,2}/[0-9a-f]{4,128}"


def entry_of(path: str) -> str | None:
    """Return the same entry for the index and for every kernel."""
    import re

    return ENTRY if path == _INDEX or re.fullmatch(_KERNEL, path) else None


def validate(files: EntryFiles) -> None:
    """Require the index, at least one kernel, and no empty file.

    Catches: a missing index, a file that was opened and never written. Cannot catch: a truncated or changed kernel, an
    index that does not match the kernels. How the driver handles those was not tried.
    """
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import plain

    if _INDEX not in files.names or len(files.names) == 1:
        raise EntryInvalid("incomplete")
    for name in files.names:
        plain.check_not_empty(files, name)


PROFILE = Profile(
    name="cuda-computecache",
    variables={"CUDA_CACHE_PATH": "{dir}"},
    defaults={"CUDA_CACHE_PATH": "~/.nv/ComputeCache"},
    relocation="relocatable",
    facts=("image", "driver", "gpu"),
    entry_of=entry_of,
    validate=validate,
    keeps="larger",
    after_success=True,
    in_step=True,
    experimental=True,
)

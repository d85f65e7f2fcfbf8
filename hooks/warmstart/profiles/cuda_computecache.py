"""The CUDA driver's cache of kernels that it compiled from PTX (docs/cache-formats.md, CUDA ComputeCache).

`<hex>/<hex>/<hash>` and one `index`. The driver writes both in place and nobody has published their formats, so this is
one entry, with its index or not at all, and the newest one replaces older ones: what one job adds changes the index.
It is valid for one driver and one GPU model, which are in the namespace. A killed job may leave half a kernel under its
final name, so only what a successful job leaves is harvested.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from warmstart.profiles.contract import Profile

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

ENTRY = "ComputeCache"
_INDEX = "index"
_KERNEL = r"[0-9a-f]{1,2}/[0-9a-f]{1,2}/[0-9a-f]{4,128}"


def entry_of(path: str) -> str | None:
    """Return the one entry for the index and for every kernel."""
    return ENTRY if path == _INDEX or re.fullmatch(_KERNEL, path) else None


def validate(files: EntryFiles) -> None:
    """Prove that the index and at least one kernel are there, and that no file is empty.

    Catches: a missing index, a file that was opened and never written. Can't catch: a kernel that was cut short or
    changed, an index that does not fit the kernels. What the driver makes of those was not tried.
    """
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import plain

    if _INDEX not in files.names or len(files.names) == 1:
        raise EntryInvalid("incomplete")
    for name in files.names:
        plain.check_not_empty(files, name)


PROFILE = Profile(
    name="cuda-computecache",
    subdir="cuda-computecache",
    variables={"CUDA_CACHE_PATH": "{dir}"},
    relocation="relocatable",
    facts=("image", "driver", "gpu"),
    entry_of=entry_of,
    validate=validate,
    keeps="newest",
    after_success=True,
)

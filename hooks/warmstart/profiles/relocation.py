"""Rewrite paths in seeded entries to the job's own. Runs in a child with the job's uid, before the job starts.

It has the job's uid because the files are in a directory of the job's user, whose other processes may change them
meanwhile. The parent uses only whether it succeeded, none of its results.
"""

from __future__ import annotations

from warmstart.host.files import opened_dir
from warmstart.profiles import registry


def relocate(profile_name: str, cache: int, path: str, entries: list[str]) -> None:
    """Relocate a profile's entries below `cache`, a descriptor of the cache root, which the job sees at `path`.

    Raises `OSError` if a file cannot be read or replaced.
    """
    profile = registry.get(profile_name)
    if profile.relocate:
        with opened_dir(profile.name, cache) as directory:
            profile.relocate(directory, f"{path}/{profile.name}", entries)

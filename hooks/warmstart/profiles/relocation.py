"""Make seeded entries name the job's own path; runs in a child with the job's uid, before the job starts.

Why the job's uid: what is read and written here lies in a directory of the job's user, whose other jobs may be at
work on it. Nothing that this process returns is used, only whether it succeeded.
"""

from __future__ import annotations

from warmstart.host.files import opened_dir
from warmstart.profiles import registry


def relocate(profile_name: str, cache: int, path: str, entries: list[str]) -> None:
    """Relocate the entries of a profile below `cache`, a descriptor of the job's cache root, which it sees at `path`.

    `OSError` where a file can't be read or replaced.
    """
    profile = registry.get(profile_name)
    if profile.relocate:
        with opened_dir(profile.subdir, cache) as directory:
            profile.relocate(directory, f"{path}/{profile.subdir}", entries)

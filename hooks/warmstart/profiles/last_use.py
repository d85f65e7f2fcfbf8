"""Make the files in which a tool keeps when it last used each entry (`Profile.last_use`).

A bundle has them for all of its entries, and they are in no manifest: root makes them in the stage that it packs. Where
bundles are extracted a child with the job's uid makes them, because a part of a bundle comes without them.
"""

from __future__ import annotations

import os

from warmstart.host.files import opened_dir
from warmstart.lean import Iterable
from warmstart.profiles import registry

SIZE = 8  # bytes


def make(profile_name: str, directory: int, entries: Iterable[str]) -> None:
    """Make the entries' files in a profile's directory, a descriptor. Raises `OSError`."""
    profile = registry.shipped(profile_name)
    if profile is None or profile.last_use is None:
        return
    for entry in entries:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(profile.last_use(entry), flags, 0o600, dir_fd=directory)
        try:
            os.ftruncate(fd, SIZE)  # a hole: takes no space on the disk
            os.fchmod(fd, 0o644)
            os.utime(fd, ns=(0, 0))  # the same content gives the same bundle
        finally:
            os.close(fd)


def make_in_cache(profile_name: str, cache: int, entries: list[str]) -> None:
    """Make the entries' files below `cache`, a descriptor of the cache root. Raises `OSError`."""
    with opened_dir(profile_name, cache) as directory:
        make(profile_name, directory, entries)

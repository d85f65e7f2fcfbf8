"""List a tar file of unknown origin; runs as the validator."""

from __future__ import annotations

import errno
import os
import tarfile
from typing import NamedTuple

MOST_MEMBERS = 200_000


class Member(NamedTuple):
    """Where a file's bytes are in the tar file."""

    offset: int
    size: int


def members(fd: int) -> dict[str, Member]:
    """Return the regular files of a tar file by name; the first of a name counts.

    `EINVAL` for what is no tar file, `EFBIG` for one with too many members.
    """
    found: dict[str, Member] = {}
    try:
        with os.fdopen(os.dup(fd), "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for number, member in enumerate(tar):
                if number >= MOST_MEMBERS:
                    raise OSError(errno.EFBIG, f"more than {MOST_MEMBERS} members")
                if member.isreg() and not member.issparse():
                    found.setdefault(member.name, Member(member.offset_data, member.size))
    except (tarfile.TarError, EOFError) as error:
        raise OSError(errno.EINVAL, f"not a tar file: {error}"[:200]) from error
    return found

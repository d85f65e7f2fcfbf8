"""List an untrusted tar file. Runs as the validator."""

from __future__ import annotations

import errno
import os
import tarfile
from typing import NamedTuple

MOST_MEMBERS = 200_000


class Member(NamedTuple):
    """Where the content of a file is in the tar file, in bytes."""

    offset: int
    size: int


def members(fd: int) -> dict[str, Member]:
    """Return the regular files of an open tar file by name, without sparse ones; the first of a name counts.

    Raises `OSError`: `EINVAL` if it is not a tar file, `EFBIG` if it has more than `MOST_MEMBERS` members.
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

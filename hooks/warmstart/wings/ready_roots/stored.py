"""What only the store's owner may be able to look at: the file of an image."""

from __future__ import annotations

import os


def file_of(store: str, path: str) -> str:  # noqa: ARG001 - the shape of what runs as the store's owner
    """Return device and inode of an image's file, as enroot's hook compares them. Raises `OSError`."""
    status = os.stat(path, follow_symlinks=False)
    return f"{status.st_dev} {status.st_ino}"

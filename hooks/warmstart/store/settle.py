"""After an extraction, as the job's uid: modes that suit a private cache, and exact times.

A bundle's modes are made for layers (0666, 0777), and a squashfs cuts times to seconds, which makes ninja build anew.
"""

from __future__ import annotations

import os
import posixpath

from warmstart.host.files import opened_dir

_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


def restore_times(cache: int, subdir: str, times: dict[str, int]) -> None:
    """Give the extracted files below `subdir` of the descriptor `cache` their times (path → nanoseconds) and modes.

    `OSError` where one is not there.
    """
    with opened_dir(subdir, cache) as top:
        for folder in sorted({folder for path in times for folder in _above(path)}):
            os.chmod(folder, _FOLDER_MODE, dir_fd=top)
        for path, mtime_ns in times.items():
            os.chmod(path, _FILE_MODE, dir_fd=top)
            os.utime(path, ns=(mtime_ns, mtime_ns), dir_fd=top, follow_symlinks=False)


def _above(path: str) -> list[str]:
    folders = []
    while path := posixpath.dirname(path):
        folders.append(path)
    return folders

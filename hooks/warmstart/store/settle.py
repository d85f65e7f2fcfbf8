"""Seed by extraction, whole: what unsquashfs leaves to do are modes that suit a private cache, and exact times.

A bundle's modes are made for layers (0666, 0777), and a squashfs cuts times to seconds, which makes ninja build anew.
`settle` runs in a child of the job's uid, in that user's own directory; nothing it says is believed.
"""

from __future__ import annotations

import os
import posixpath

from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker
from warmstart.store.bundles import Offer
from warmstart.store.copies import Copy
from warmstart.store.extract import ExtractionFailed, Source, extract

_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


def unpack(picked: list[tuple[Offer, Copy]], cache: int, subdir: str, job: Identity, deadline: Deadline) -> None:
    """Extract what is offered of these copies into `subdir` of the descriptor `cache`, with its times, as the job.

    `ExtractionFailed`, `ProgramTooSlow`, `BundleDamaged`; what is left then is for the caller to remove.
    """
    times: dict[str, int] = {}
    sources = []
    for offer, copy in picked:
        files = copy.files(offer)
        wanted = {path: mtime for entry in offer.entries for path, mtime in files[entry].items()}
        sources.append(Source(copy.path, None if offer.whole else list(wanted)))
        times.update(wanted)
    extract(sources, cache, subdir, job, deadline)
    try:
        with Worker(job, keep=(cache,)) as worker:
            worker.call(settle, cache, subdir, times, deadline=deadline)
    except (WarmstartError, OSError) as error:  # in a process of the job's uid: not the node's fault, nor the store's
        raise ExtractionFailed(path=subdir, problem=f"modes and times: {error}") from error


def settle(cache: int, subdir: str, times: dict[str, int]) -> None:
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

"""Real bundles, packed and published by whoever runs the tests."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warmstart.caches.store import bundles
from warmstart.caches.store.bundles import Draft, Published
from warmstart.caches.store.layout import File, Namespace
from warmstart.harvest.pack import pack
from warmstart.host.deadline import after

MTIME_NS = 1_700_000_000_000_000_007
Entries = Mapping[str, Mapping[str, bytes]]  # entry → path → content


def packed(base: Path, entries: Entries) -> int:
    """Pack entries into a real bundle below `base`; return its descriptor."""
    stage = Path(tempfile.mkdtemp(dir=base))
    for files in entries.values():
        for path, data in files.items():
            (stage / path).parent.mkdir(parents=True, exist_ok=True)
            (stage / path).write_bytes(data)
            os.utime(stage / path, ns=(MTIME_NS, MTIME_NS))
    return pack(str(stage), f"{stage}.sqsh", after(60))


def draft(entries: Entries, user: str = "a", uid: int = 1000) -> Draft:
    """Return what is to be published of these entries."""
    files = {
        entry: {path: File(len(data), hashlib.sha256(data).hexdigest(), MTIME_NS) for path, data in content.items()}
        for entry, content in entries.items()
    }
    return Draft(user, uid, 7, files, facts={"cpu": "x"})


def publish(base: Path, where: Namespace, entries: Entries, **more: Any) -> Published:  # noqa: ANN401 - of `Draft`
    """Publish a real bundle; a `fresh` job's takes the place of what is there."""
    fd = packed(base, entries)
    try:
        return bundles.publish(where, "n1-test", fd, draft(entries)._replace(**more), 0)
    finally:
        os.close(fd)

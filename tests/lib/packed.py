"""Real bundles, packed and published by whoever runs the tests."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from warmstart.harvest.pack import pack
from warmstart.host.deadline import after
from warmstart.store import bundles
from warmstart.store.bundles import Published
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Draft, File, Producer

MTIME_NS = 1_700_000_000_000_000_007
PRODUCER = Producer(job=7, user="a", uid=1000, node="n1", cluster="c")
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


def draft(entries: Entries) -> Draft:
    """Return what the manifest of these entries is made of."""
    files = {
        entry: {path: File(len(data), hashlib.sha256(data).hexdigest(), MTIME_NS) for path, data in content.items()}
        for entry, content in entries.items()
    }
    return Draft(PRODUCER, {"cpu": "x"}, files)


def publish(base: Path, where: Namespace, entries: Entries, *, fresh: bool = False) -> Published:
    """Publish a real bundle; a `fresh` job's takes the place of what is there."""
    fd = packed(base, entries)
    try:
        return bundles.publish_bundle(where, fd, draft(entries)._replace(fresh=fresh), "n1-test")
    finally:
        os.close(fd)

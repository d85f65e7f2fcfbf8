"""What each job of the suite prints at its end: one line of JSON.

    {"seconds": 12.3, "hits": 2, "misses": 0, "result": "<sha256>", "versions": {"torch": "2.15.0"}}

`seconds` are of compiling and running once; hits and misses the tool's own counts, null if it has none.
"""

from __future__ import annotations

import hashlib
import json
from importlib import metadata


def report(seconds: float, *results: bytes, packages: tuple[str, ...], hits: int | None, misses: int | None) -> None:
    """Print it. `packages` are distributions; one that is not installed is left out."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    line = {
        "seconds": round(seconds, 3),
        "hits": hits,
        "misses": misses,
        "result": hashlib.sha256(b"".join(results)).hexdigest(),
        "versions": versions,
    }
    print(json.dumps(line), flush=True)  # noqa: T201 - the job's output is its result

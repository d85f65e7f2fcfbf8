"""A prolog of a job that is only observed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.lib.node import Node
from warmstart.entry import prolog


def files(site: Node) -> dict[str, bytes]:
    """Return all files of the site but the audit log."""
    found = {}
    for directory, _, names in os.walk(site.base):
        found[directory] = b""
        found |= {f"{directory}/{name}": Path(directory, name).read_bytes() for name in names}
    return {path: data for path, data in found.items() if not path.endswith("audit.jsonl")}


def run(site: Node) -> dict[str, Any]:
    """Run a prolog that touches nothing; return its last line, which says what it would do."""
    for directory in (site.paths.state, site.paths.view):  # as after any other job
        os.makedirs(directory, exist_ok=True)
    os.makedirs(site.paths.root, exist_ok=True)
    before = files(site)
    assert prolog.main(site.installation.prefix) == 0
    assert files(site) == before
    (line,) = site.results()
    assert (line["status"], line["observed"]) == (0, True)
    return line

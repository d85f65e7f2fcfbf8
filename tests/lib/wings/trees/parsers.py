"""The wing's parsers of foreign bytes, for tests/lib/fuzz."""

from __future__ import annotations

import tempfile

from tests.lib.fuzz import parsers
from warmstart.errors import WarmstartError
from warmstart.host.files import opened_dir
from warmstart.wings.trees import stage, walk


def _tree_records(data: bytes) -> object:
    """Take the records of a tree, as root does, into a stage of its own."""
    with tempfile.TemporaryDirectory(dir=parsers.STAGE) as top, tempfile.TemporaryFile(buffering=0) as file:
        file.write(data)
        with opened_dir(top) as fd, stage.Stage(fd, "/tree", walk.Bounds(1 << 20, 100)) as staged:
            return staged.take(file.fileno())


_TREE = b"".join(
    [
        walk.DIRECTORY + walk.NAME.pack(1) + b"a" + walk.ATTRIBUTES.pack(0o755, 1, 0),
        walk.FILE + walk.NAME.pack(1) + b"b" + walk.ATTRIBUTES.pack(0o644, 1, 2),
        walk.BYTES + (2).to_bytes(4, "little") + b"xy" + walk.UP,
        walk.LINK + walk.NAME.pack(1) + b"c" + walk.ATTRIBUTES.pack(0o777, 1, 0) + walk.NAME.pack(1) + b"a",
        walk.LEFT_OUT + walk.NAME.pack(1) + b"d" + walk.NAME.pack(4) + b"gone" + walk.END,
    ]
)
PARSERS = {
    "tree-records": parsers.Parser(
        _tree_records,
        (WarmstartError, OSError),
        tuple(f"wings/trees/stage.py:_Records.{method}" for method in ("name", "attributes", "piece")),
        (_TREE,),
    ),
}
OWN = {"wings/trees/step.py:_fetched": "root's file in a bundle"}

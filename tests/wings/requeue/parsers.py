"""The wing's parser of foreign bytes, for tests/fuzz."""

from __future__ import annotations

import json

from tests.fuzz import parsers
from warmstart.wings.requeue import stored

_JOB = stored.RequeuedJob("c", 7, "7", 1000, 0, "reg/a:1", "x86_64")
PARSERS = {
    "requeued": parsers.Parser(
        parsers.in_directory(lambda fd: stored._read(fd, "c.7.json"), "c.7.json"),
        (),
        ("wings/requeue/stored.py:_read",),
        (json.dumps(_JOB._asdict()).encode(),),
    ),
}
BARE = {"requeued": ("c.7.json", "wings.requeue.stored", "_read")}

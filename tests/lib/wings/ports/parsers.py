"""The wing's parsers of foreign bytes, for tests/lib/fuzz."""

from __future__ import annotations

import json

from tests.lib.fuzz import parsers
from warmstart.wings.ports import ledger

_HOLDER = ledger.Holder("n1", 7, "0a1b2c3d", 1000)
PARSERS = {
    "port": parsers.Parser(
        parsers.in_directory(lambda fd: ledger._read(fd, "28000"), "28000"),
        (),
        ("wings/ports/ledger.py:_read",),
        (json.dumps(_HOLDER._asdict()).encode(),),
    ),
}

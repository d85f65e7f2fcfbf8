"""The wing's parser of foreign bytes, for tests/lib/fuzz."""

from __future__ import annotations

import json

from tests.lib.fuzz import parsers
from warmstart.wings.specs import stored

_SPEC = stored.Spec("c", 7, 1000, 0, 1.5, "train", "", None, "normal")
PARSERS = {
    "spec": parsers.Parser(
        stored._decode,
        (OSError, ValueError, KeyError, TypeError),
        ("wings/specs/stored.py:_decode",),
        (json.dumps({"format": 1, **_SPEC._asdict()}).encode(),),
    ),
}

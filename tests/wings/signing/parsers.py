"""The wing's parsers of foreign bytes, for tests/fuzz."""

from __future__ import annotations

import json

from tests.fuzz import parsers
from warmstart.wings.signing import stored

_LIST = stored.SignedList(1, "ab" * 16, "site", 7, 1.0, 2.0, {"numba/ns": "cd" * 32})
PARSERS = {
    "signed-list": parsers.Parser(
        lambda data: stored.checked(data.decode("utf-8", "surrogateescape")),
        (ValueError,),
        ("wings/signing/stored.py:checked",),
        (json.dumps(_LIST._asdict()).encode(),),
    ),
    "signed-list-file": parsers.Parser(
        stored._envelope,
        (),
        ("wings/signing/stored.py:_envelope",),
        (json.dumps({"text": "{}", "signature": "x"}).encode(),),
    ),
}
BARE = {
    "signed-list": ("", "wings.signing.stored", "checked"),
    "signed-list-file": ("", "wings.signing.stored", "_envelope"),
}
OWN = {"wings/signing/lists.py:SignedLists._known": "root's file on the node"}

"""The wing's parsers of foreign bytes, for tests/lib/fuzz."""

from __future__ import annotations

from tests.lib.fuzz import parsers
from warmstart.wings.step_images import asking

PARSERS = {
    "step-answer": parsers.Parser(
        asking._decode,
        (ValueError,),
        ("wings/step_images/asking.py:_decode",),
        (asking.Answer(asking.FAILED, "/a", "user", "code", "text", "hint").encode(),),
    ),
}
OWN = {"wings/step_images/asking.py:peer": "the kernel's answer"}

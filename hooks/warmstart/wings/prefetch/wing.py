"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

WING = Wing(
    about="imports of images before the jobs that need them start",
    commands={"prefetch": "prefetch"},
)

"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

WING = Wing(
    about="scopes from which nodes take only what a list names that an administrator's key has signed",
    guards="signing.scopes",
    guarded_only="signed_only",
    commands={"signing": "signing"},
)

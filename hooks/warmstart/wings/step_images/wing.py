"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

WING = Wing(about="a socket on each node, at which steps ask for images that no prolog knew")

"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

WING = Wing(about="images are shared with launchers that keep NAME.sqsh and lock NAME.sqsh.lock")

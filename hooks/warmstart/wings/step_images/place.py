"""Where the socket and its program are."""

from __future__ import annotations

from warmstart.paths import SPARE, Installation

KEY = "step_images"  # of the policy


def socket_of(installation: Installation) -> str:
    """Return the path of the socket; the unit in `systemd` has the same."""
    return f"{SPARE}{installation.var}/step-images.sock"


def program_of(installation: Installation) -> str:
    """Return the path of the program that serves it."""
    return f"{installation.libexec}/step-images"

"""The policy's key, and where the socket and its program are."""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING, NamedTuple
from warmstart.paths import Installation

if TYPE_CHECKING:
    from typing import Literal

KEY = "step_images"  # of the policy


class StepImages(NamedTuple):
    """What a step does whose image root can't get in time ([images of steps](../wings/step_images.md))."""

    after_wait: Literal["wait", "import"] = "wait"
    """If its image is still missing after `images.wait`, a step waits on, at most as long as an import may take, or
    imports the image as its user and for itself alone."""


def socket_of(installation: Installation) -> str:
    """Return the path of the socket; the unit in `systemd` has the same."""
    return f"{installation.runtime}/step-images.sock"


def program_of(installation: Installation) -> str:
    """Return the path of the program that serves it."""
    return f"{installation.libexec}/step-images"

"""What tests of the wing share."""

from __future__ import annotations

import shutil

from tests.support.requirements import unavailable


def need_ssh_keygen() -> None:
    """Require the program that makes and checks signatures."""
    if not shutil.which("ssh-keygen"):
        unavailable("needs openssh-client")

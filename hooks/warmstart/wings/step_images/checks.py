"""What doctor looks at: that the socket is there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from warmstart.doctor import containers
from warmstart.doctor.finding import ADVICE, OK, Finding
from warmstart.doctor.slurm import Slurm, is_ours
from warmstart.doctor.units import scheduled
from warmstart.doctor.wings import Checks
from warmstart.wings.step_images.place import socket_of


def step_images(seen: Slurm) -> Iterator[Finding]:
    """Check that steps can ask root for images, where pyxis's importer is warmstart's."""
    pyxis = containers.tasks(seen).pyxis
    path = socket_of(seen.installation)
    if not is_ours((pyxis.argument("importer") if pyxis else "") or "/", f"{seen.installation.libexec}/pyxis-importer"):
        yield Finding(OK, "pyxis does not import through warmstart")
    elif not _is_roots_socket(path):
        found = f"there is no socket {path}: an image that only a step names is imported by each user alone"
        otherwise = f"let slurmd's supervisor run {seen.installation.libexec}/step-images"
        change = (
            f"{scheduled(seen.installation, 'warmstart-step-images.socket', otherwise)} (docs/wings/step_images.md)"
        )
        yield Finding(ADVICE, found, change)
    else:
        yield Finding(OK, "steps can ask for images")


def _is_roots_socket(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid == 0


CHECKS = Checks(slurm={"slurm.step-images": step_images})

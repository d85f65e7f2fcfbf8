"""What doctor looks at: that the socket is there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from warmstart.doctor.finding import ADVICE, SKIP, Finding, check
from warmstart.doctor.slurm import Slurm, is_ours
from warmstart.doctor.units import scheduled
from warmstart.doctor.wings import Checks
from warmstart.wings.step_images.place import socket_of


@check("slurm.step-images")
def step_images(seen: Slurm) -> Iterator[Finding]:
    """Check that steps can ask root for images, where pyxis's importer is warmstart's."""
    importer = seen.pyxis.argument("importer") if seen.pyxis else ""
    path = socket_of(seen.installation)
    if not is_ours(importer or "/", seen.hook("pyxis-importer")):
        yield SKIP
    elif not _is_roots_socket(path):
        found = f"there is no socket {path}: an image that only a step names is imported by each user alone"
        otherwise = f"let slurmd's supervisor run {seen.installation.libexec}/step-images"
        change = (
            f"{scheduled(seen.installation, 'warmstart-step-images.socket', otherwise)} (docs/wings/step_images.md)"
        )
        yield Finding(ADVICE, found, change)


def _is_roots_socket(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid == 0


CHECKS = Checks(slurm=(step_images,))

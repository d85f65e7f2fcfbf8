"""An image of another launcher counts only if it belongs to one of the policy's accounts."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.superblocks import image
from warmstart.images.store import launchers
from warmstart.images.store.launchers import AdoptedImage
from warmstart.policy.compiled import Adopt


def test_a_strangers_file_is_refused(tmp_path: Path) -> None:
    """Its owner could still rewrite it."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "a.sqsh").write_bytes(image())
    (shared / "a.sqsh").chmod(0o644)
    os.chown(shared / "a.sqsh", 12345, -1)
    target = os.memfd_create("own")
    try:
        problem = launchers.adopt(target, [Adopt(str(shared), (0,))], ["a"], 0.0)
        assert isinstance(problem, str)
        assert "uid 12345" in problem
        assert isinstance(launchers.adopt(target, [Adopt(str(shared), (12345,))], ["a"], 0.0), AdoptedImage)
    finally:
        os.close(target)

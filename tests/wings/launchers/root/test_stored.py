"""An image of another launcher counts only if it belongs to one of the policy's accounts."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.superblocks import image
from warmstart.images.places import Copied
from warmstart.wings.launchers import stored
from warmstart.wings.launchers.stored import Adopt


def test_a_strangers_file_is_refused(tmp_path: Path) -> None:
    """Its owner could still rewrite it."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "a.sqsh").write_bytes(image())
    (shared / "a.sqsh").chmod(0o644)
    os.chown(shared / "a.sqsh", 12345, -1)
    target = os.memfd_create("own")
    try:
        problem = stored.adopt(target, [Adopt(str(shared), (0,))], ["a"], 0.0)
        assert isinstance(problem, str)
        assert "uid 12345" in problem
        assert isinstance(stored.adopt(target, [Adopt(str(shared), (12345,))], ["a"], 0.0), Copied)
    finally:
        os.close(target)

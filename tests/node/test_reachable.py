"""`tools/reachable`: job users can read a checkout that lies below a private directory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REACHABLE = Path(__file__).parents[2] / "tools" / "reachable"
AS_NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")


@pytest.mark.report
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_other_users_can_read_the_checkout(base: Path, mode: int) -> None:
    """They run what it has; the host's mounts stay as they are."""
    private = base / "private"
    tools = private / "checkout" / "tools"
    tools.mkdir(parents=True)
    private.chmod(mode)
    shutil.copy(REACHABLE, tools)
    (tools.parent / "setup.cfg").write_text("readable\n")
    before = Path("/proc/self/mountinfo").read_text()
    script = 'cat "$PWD/setup.cfg"'
    done = subprocess.run(
        [tools / "reachable", *AS_NOBODY, "sh", "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout == "readable\n"
    assert Path("/proc/self/mountinfo").read_text() == before

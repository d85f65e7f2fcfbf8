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
    """They run what it has; nothing is mounted outside of the command's namespace."""
    private = base / "private"
    tools = private / "checkout" / "tools"
    tools.mkdir(parents=True)
    private.chmod(mode)
    shutil.copy(REACHABLE, tools)
    (tools.parent / "setup.cfg").write_text("readable\n")
    before = _bound_at_srv()
    script = 'cat "$PWD/setup.cfg"'
    done = subprocess.run(
        [tools / "reachable", *AS_NOBODY, "sh", "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout == "readable\n"
    assert _bound_at_srv() == before


def _bound_at_srv() -> list[str]:
    """Return what is mounted where `reachable` binds a checkout; other tests mount elsewhere at the same time."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return [mount for mount in mounts if mount.split()[4] == "/srv"]

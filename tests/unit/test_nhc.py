"""The check for Node Health Check takes a node out for what is critical, and says why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging/nhc/warmstart.nhc"
OUTPUT = """\
STATUS    CHECK        FINDING
critical  store.mount  not mounted
wrong     policy.off   off
1 critical, 1 wrong"""


@pytest.mark.parametrize(
    ("status", "said", "reason"),
    [
        (0, "40 ok", ""),
        (1, "1 wrong", ""),
        (2, OUTPUT, "check_warmstart: critical  store.mount  not mounted"),
        (3, "Traceback\nZeroDivisionError", "could not run (status 3): ZeroDivisionError"),
        (127, "not found", "could not run (status 127)"),
    ],
)
def test_the_status_decides(tmp_path: Path, status: int, said: str, reason: str) -> None:
    program = tmp_path / "warmstart"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = doctor ] || exit 99\ncat <<'END'\n{said}\nEND\nexit {status}\n")
    program.chmod(0o755)
    code = f'die() {{ echo "OFFLINE $1: $2"; }}; . "{SCRIPT}"; check_warmstart "{program}"'
    done = subprocess.run(["/bin/bash", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1 if reason else 0, "")
    assert done.stdout.startswith("OFFLINE 1: ") == bool(reason)
    assert reason in done.stdout

"""`warmstart signing sign` refuses what it cannot do before it asks for a key."""

from __future__ import annotations

from pathlib import Path

from tests.support.command_line import installed, run


def test_a_duration_is_one(tmp_path: Path) -> None:
    """The words are those of the policy."""
    done = run(installed(tmp_path), "signing", "sign", "site", "--valid", "90")
    assert (done.exit_code, "90d" in done.output or "30s" in done.output) == (2, True)

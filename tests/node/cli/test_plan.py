"""What `warmstart plan` tells root and no user."""

from __future__ import annotations

from pathlib import Path

from tests.lib.command_line import installed, run


def test_a_policy_that_is_not_there_is_to_be_written(tmp_path: Path) -> None:
    """A user is told to ask root."""
    site = installed(tmp_path)
    Path(site.policy).unlink()
    result = run(site, "plan", "--user", "nobody")
    assert result.exit_code == 2
    assert "write a policy" in result.stderr

"""`warmstart report --html FILE`."""

from __future__ import annotations

from pathlib import Path

from tests.lib import sample_log
from tests.lib.command_line import run
from warmstart.paths import Installation


def test_a_page(tmp_path: Path) -> None:
    nowhere, path = Installation(str(tmp_path / "prefix")), tmp_path / "report.html"
    sample_log.write(tmp_path / "audit.jsonl", 20)
    options = ("report", "--from", str(tmp_path / "audit.jsonl"), "--since", "2026-02-01")
    result = run(nowhere, *options, "--html", str(path))
    assert (result.exit_code, result.stdout.startswith(f"wrote {path}")) == (0, True)
    assert path.read_text().startswith("<!DOCTYPE html>")
    failed = run(nowhere, *options, "--html", f"{tmp_path}/no/report.html")
    assert (failed.exit_code, "No such file" in failed.stderr) == (2, True)

"""`flush`: hooks' events go into the audit log; and the shell around it, which starts Python only for some."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.entry_site import EntrySite
from warmstart.entry import flush, prolog

PROGRAM = Path(__file__).resolve().parents[3] / "packaging/libexec/flush.in"


def test_what_hooks_left_is_moved(entry_site: EntrySite) -> None:
    """Of all nodes of this host; a second time there is nothing to do."""
    assert prolog.main(entry_site.installation.prefix) == 0
    log = Path(entry_site.policy.paths.audit)
    assert (os.listdir(entry_site.paths.journal), log.exists()) != ([], True)
    assert flush.main(entry_site.installation.prefix) == 0
    assert os.listdir(entry_site.paths.journal) == []
    size = log.stat().st_size
    assert (size > 0, flush.main(entry_site.installation.prefix), log.stat().st_size) == (True, 0, size)


def test_a_log_that_cannot_be_written(entry_site: EntrySite, capfd: pytest.CaptureFixture[str]) -> None:
    """The events stay, and the status says so: nobody tries again at once."""
    assert prolog.main(entry_site.installation.prefix) == 0
    Path(entry_site.policy.paths.audit).mkdir(parents=True)
    assert flush.main(entry_site.installation.prefix) == flush.FAILED
    assert len(os.listdir(entry_site.paths.journal)) == 1
    assert "audit log" in capfd.readouterr().err


def test_without_a_policy(entry_site: EntrySite) -> None:
    """Nobody knows where the log is."""
    os.unlink(entry_site.installation.compiled_policy)
    assert flush.main(entry_site.installation.prefix) == flush.FAILED


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("", False),
        ("prolog-0a-1.open", False),  # its process lives
        ("prolog-0a-4194305.open", True),  # no pid is so large
        ("prolog-0a-1.done", True),
        ("something", False),
    ],
)
def test_python_starts_only_for_what_is_to_be_moved(tmp_path: Path, name: str, starts: bool) -> None:
    """A shell looks each time that systemd or cron starts it."""
    journal = tmp_path / "var/n1/journal"
    journal.mkdir(parents=True)
    if name:
        (journal / name).touch()
    marks = tmp_path / "var/.unflushed"
    (marks / "n1").mkdir(parents=True)
    (marks / "n2").mkdir()
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    script = PROGRAM.read_text()
    for key, value in (("@PYTHON@", python), ("@VAR@", tmp_path / "var"), ("@PREFIX@", "/usr")):
        script = script.replace(key, str(value))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    start = "/usr/lib/warmstart/python"
    assert [*marks.iterdir()] == ([marks / "n1"] if name else [])
    assert done.stdout == (f"-ISXutf8 {start}/warmstart/start.py entry.flush /usr {start}\n" if starts else "")

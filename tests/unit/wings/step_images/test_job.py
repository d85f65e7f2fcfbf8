"""Whose job a process is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmstart.wings.step_images import job


def test_whose_a_process_is_the_nearest_step_daemon_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11), (21, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nPPid:\t{parent}\n")
    proc = str(tmp_path)
    monkeypatch.setattr(job, "job_of_daemon", {f"{proc}/10": 7}.get)
    assert [job.job_of(pid, proc) for pid in (10, 11, 12)] == [7, 7, 7]
    assert [job.job_of(pid, proc) for pid in (1, 21, 99)] == [None] * 3

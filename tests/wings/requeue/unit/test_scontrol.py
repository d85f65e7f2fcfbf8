"""What is asked of slurmctld for jobs that wait in its queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmstart.host.deadline import after
from warmstart.slurm.facts import Access
from warmstart.wings.requeue import scontrol


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("", ""),
        ("echo 'Job is pending execution for job 7' >&2; exit 1", ""),  # another hook of the job was faster
        ("echo 'Only batch jobs are accepted or processed for job 7' >&2; exit 1", "scontrol: Only batch jobs"),
        ("exec sleep 600", "was killed at its deadline"),
    ],
)
def test_a_job_is_requeued_or_there_is_a_reason(tmp_path: Path, script: str, problem: str) -> None:
    """Never an error: the caller is a prolog."""
    access = changing(tmp_path, script)
    found = scontrol.requeue(access, "7_3", after(0.5 if "sleep" in script else 60))
    assert (problem in found, bool(found)) == (True, bool(problem))
    assert (tmp_path / "asked").read_text() == "requeue 7_3 /etc/s.conf\n"
    assert "No such file" in scontrol.requeue(Access("/nowhere/scontrol"), "7", after(60))


def test_jobs_are_changed_with_one_call(tmp_path: Path) -> None:
    """Or there is a reason."""
    access = changing(tmp_path, "[ $2 = jobid=7,8_1 ] || { echo no >&2; exit 1; }")
    assert scontrol.put_off(access, ["7", "8_1"], "now+300", after(60)) == ""
    assert (tmp_path / "asked").read_text() == "update jobid=7,8_1 StartTime=now+300 /etc/s.conf\n"
    assert scontrol.put_off(access, ["9"], "now", after(60)) == "scontrol: no"


def changing(tmp_path: Path, script: str) -> Access:
    """Return the access to a stand-in for scontrol that writes down how it was called."""
    path = tmp_path / "scontrol"
    path.write_text(f'#!/bin/sh\necho "$* $SLURM_CONF" >>{tmp_path}/asked\n{script}\n')
    path.chmod(0o755)
    return Access(str(path), "/etc/s.conf")

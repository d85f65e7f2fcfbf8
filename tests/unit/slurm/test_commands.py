"""What Slurm's commands say of jobs and of slurmctld's configuration: a clear answer, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmstart.host.deadline import after
from warmstart.slurm import commands
from warmstart.slurm.facts import Access, JobFacts

# squeue of Slurm 22.05.8: JobID, State, QOS, ArrayJobID, ArrayTaskID, EligibleTime.
TASKS = "2|RUNNING|(null)|2|2|1795333348|\n4|PENDING|high|2|1|1795333348|\n"
CONFIG = """\
Configuration data as of 2026-11-21T19:28:52
AccountingStorageBackupHost = (null)
AccountingStorageEnforce = associations,limits,qos
Epilog                  = (null)
Prolog[0]               = /site/first
Prolog[1]               = /usr/libexec/warmstart/prolog
PrologEpilogTimeout     = 280
PrologSlurmctld         = /usr/libexec/warmstart/prolog-slurmctld
"""


def squeue(tmp_path: Path, script: str) -> Access:
    """Return the access to a stand-in for squeue that writes down how it was called."""
    (tmp_path / "squeue").write_text(
        f'#!/bin/sh\necho "$* $SLURM_CONF $SLURM_TIME_FORMAT" >>{tmp_path}/asked\n{script}\n'
    )
    (tmp_path / "squeue").chmod(0o755)
    return Access(str(tmp_path / "scontrol"), "/etc/s.conf")


def test_a_job_among_the_tasks_of_its_array() -> None:
    assert commands.parse_job(TASKS, 2) == JobFacts(2, "RUNNING", "", "2_2", 1795333348)
    assert commands.parse_job(TASKS, 4) == JobFacts(4, "PENDING", "high", "2_1", 1795333348)


def test_a_job_outside_of_arrays() -> None:
    """Squeue has no task for it, and no time for a job that never ran."""
    assert commands.parse_job("7|PENDING|N/A|7|3-9%2|N/A|\n", 7).array == "7_3-9"
    assert commands.parse_job("7|PENDING|N/A|7|N/A|N/A|\n", 7) == JobFacts(7, "PENDING", "", "", 0)


@pytest.mark.parametrize("text", ["", TASKS, "7|PENDING\n", "7|RUNNING|a|7|N/A|1|\n" * 2])
def test_an_unclear_answer_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="no clear answer"):
        commands.parse_job(text, 7)


def test_squeue_is_called_once(tmp_path: Path) -> None:
    access = squeue(tmp_path, f"cat <<'E'\n{TASKS}E")
    assert commands.job(access, 4, after(60)) == commands.parse_job(TASKS, 4)
    (call,) = (tmp_path / "asked").read_text().splitlines()
    assert call.startswith("--noheader --states=all --jobs=4 --Format=JobID:|,State:|,")
    assert call.endswith(" /etc/s.conf %s")


def test_a_job_that_slurm_has_forgotten(tmp_path: Path) -> None:
    """Squeue says so in so many words; any other failure is no answer."""
    gone = squeue(tmp_path, "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert commands.job(gone, 7, after(60)) is None
    silent = squeue(tmp_path, "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ValueError, match="Unable to contact"):
        commands.job(silent, 7, after(60))


def scontrol(tmp_path: Path, text: str, status: int = 0, asked: str = "show config") -> Access:
    """Return the access to a stand-in for scontrol."""
    (tmp_path / "answer").write_text(text)
    path = tmp_path / "scontrol"
    path.write_text(f'#!/bin/sh\n[ "$*" = "{asked}" ] && cat {tmp_path}/answer\nexit {status}\n')
    path.chmod(0o755)
    return Access(str(path))


def test_the_running_settings_are_read(tmp_path: Path) -> None:
    """Of a key with several values all count; what is not set has none."""
    found = commands.settings(scontrol(tmp_path, CONFIG), after(60))
    assert found.all("Prolog") == ["/site/first", "/usr/libexec/warmstart/prolog"]
    assert (found.all("Epilog"), found.one("Epilog"), found.seconds("Epilog")) == ([], "", 0)
    assert commands.enforced(scontrol(tmp_path, CONFIG), after(60)) == ["associations", "limits", "qos"]
    nothing = CONFIG.replace("associations,limits,qos", "none")
    assert commands.enforced(scontrol(tmp_path, nothing), after(60)) == []


def test_times_have_units_or_none() -> None:
    found = commands.parse_settings(f"{CONFIG}BatchStartTimeout = 360 sec\n")
    assert (found.seconds("BatchStartTimeout"), found.seconds("PrologEpilogTimeout")) == (360, 280)


PARTITIONS = """\
PartitionName=ci AllowGroups=ALL AllocNodes=ALL MaxNodes=1 MinNodes=0 Nodes=n[1-2] State=UP TotalCPUs=2 TotalNodes=2
PartitionName=none AllowGroups=ALL AllocNodes=ALL MaxNodes=1 MinNodes=0 Nodes=(null) State=UP TotalCPUs=0 TotalNodes=0
"""


def test_partitions_are_read_with_their_nodes(tmp_path: Path) -> None:
    access = scontrol(tmp_path, PARTITIONS, asked="--all --oneliner show partition")
    assert commands.partitions(access, after(60)) == {"ci": "n[1-2]", "none": ""}


@pytest.mark.parametrize(
    ("text", "status"), [(CONFIG * 2, 0), (CONFIG.replace("AccountingStorageEnforce", "X"), 0), ("", 0), (CONFIG, 1)]
)
def test_an_unclear_configuration_is_none(tmp_path: Path, text: str, status: int) -> None:
    with pytest.raises(ValueError, match="scontrol"):
        commands.settings(scontrol(tmp_path, text, status), after(60))


# How a job ended, as squeue tells it while the epilog runs: a wait status on 22.05, CODE:SIGNAL since 23.02.


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("7|COMPLETED|None|0|2026-11-21T19:28:52|", ""),
        ("6|COMPLETING|NonZeroExitCode|512|2026-11-21T19:29:04|\n7|COMPLETING|None|0|2026-11-21T19:29:04|\n", ""),
        ("7|COMPLETED|None|0:0|2026-11-21T19:28:52|", ""),
        (
            "7|COMPLETING|NonZeroExitCode|768|2026-11-21T19:28:52|",
            "it ended with exit code 3:0, reason NonZeroExitCode",
        ),
        (
            "7|COMPLETING|NonZeroExitCode|3:0|2026-11-21T19:28:52|",
            "it ended with exit code 3:0, reason NonZeroExitCode",
        ),
        ("7|COMPLETING|TimeLimit|0:15|2026-11-21T19:28:52|", "it ended with exit code 0:15, reason TimeLimit"),
        ("7|COMPLETING|TimeLimit|0|2026-11-21T19:28:52|", "it ended with exit code 0:0, reason TimeLimit"),
        ("7|COMPLETING|None||2026-11-21T19:28:52|", "it ended with exit code , reason None"),
        ("7|TIMEOUT|TimeLimit|0|2026-11-21T19:28:52|", "it is TIMEOUT"),
        ("7|COMPLETING|None|0|NONE|", "it was requeued"),
        ("7|COMPLETING|None", "not known: squeue gives no clear answer"),
        ("6|COMPLETED|None|0|2026-11-21T19:28:52|", "not known: squeue gives no clear answer"),
        ("7|COMPLETED|None|0|2026|\n7|COMPLETED|None|0|2026|", "not known: squeue gives no clear answer"),
    ],
)
def test_what_squeue_says(answer: str, expected: str) -> None:
    """Only a plain answer about this job is one; other tasks of its array do not count."""
    assert commands.parse_outcome(answer, 7) == expected

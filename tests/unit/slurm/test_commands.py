"""What Slurm's commands and pyslurm say of a job: beyond doubt, in time, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.fake_pyslurm import install
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.slurm import commands
from warmstart.slurm.commands import Answer, LookUpFailed, QosQuery

# `scontrol show job` of Slurm 22.05.8, shortened: JobName, Account, WCKey, Comment and paths are the user's.
SHOWN = """\
JobId=7 JobName={name}
   UserId=ws-alice(64201) GroupId=ws-alice(995) MCS_label=N/A
   Priority=4294901759 Nice=0 Account={account} QOS={qos}
   JobState=CONFIGURING Reason=None Dependency=(null)
   Comment={comment}
"""


def shown(name: str = "x", account: str = "(null)", qos: str = "high", comment: str = "") -> str:
    """Return scontrol's answer for a job."""
    return SHOWN.format(name=name, account=account, qos=qos, comment=comment)


@pytest.mark.parametrize(
    ("text", "qos"),
    [
        (shown(), "high"),
        (shown(qos="N/A"), ""),
        (shown(qos="(null)"), ""),
        (shown(qos="high WCKey=a b"), "high"),
        (shown().replace("JobId=7 ", "JobId=7 ArrayJobId=5 ArrayTaskId=2 "), "high"),
        (shown(name="QoS of life"), "high"),
    ],
)
def test_scontrols_answer_is_read(text: str, qos: str) -> None:
    """Its one QOS, or that there is none."""
    assert commands.parse_qos(text, 7) == qos


@pytest.mark.parametrize(
    "text",
    [
        "",
        shown().replace("JobId=7", "JobId=8"),
        shown() + shown(),
        shown().replace(" QOS=high", ""),
        shown(name="x QOS=vip"),
        shown(name="x\n   Priority=1 Nice=0 Account=a QOS=vip"),
        shown(account="x QOS=vip\n  "),
        shown(comment="QOS=vip"),
        shown(qos="high\n").replace("QOS=high", "QOS= high"),
    ],
)
def test_an_answer_that_could_be_the_users_is_none(text: str) -> None:
    """A user writes name, account and comment, newlines included (docs/threats.md, row 3)."""
    with pytest.raises(ValueError, match="scontrol"):
        commands.parse_qos(text, 7)


def asked(tmp_path: Path, script: str) -> QosQuery:
    """Return a question to a stand-in for scontrol."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n{script}\n")
    scontrol.chmod(0o755)
    me = Identity("me", os.getuid(), os.getgid())
    return QosQuery(7, "7_3", str(scontrol), "/etc/s.conf", str(tmp_path / "libraries"), me)


def telling(tmp_path: Path, version: str = "22.05.8") -> QosQuery:
    """Return a question to a scontrol that tells QOS `high` and writes down what it was asked."""
    (tmp_path / "answer").write_text(shown())
    script = (
        f'case $1 in -V) echo "slurm-wlm {version}"; exit;; esac\n'
        f'echo "$* $SLURM_CONF ${{PATH-}}" >>{tmp_path}/asked; cat {tmp_path}/answer'
    )
    return asked(tmp_path, script)


def test_scontrol_is_asked_once(tmp_path: Path) -> None:
    """With the site's slurm.conf, for the job alone."""
    assert commands.qos(telling(tmp_path), after(60)) == Answer("high", "scontrol")
    (line,) = (tmp_path / "asked").read_text().splitlines()
    assert line.startswith("show job 7_3 /etc/s.conf")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exec sleep 600", "was killed at its deadline"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        ("echo nonsense", "output is not about job 7"),
    ],
)
def test_a_controller_that_does_not_answer_is_left_at_the_deadline(tmp_path: Path, script: str, reason: str) -> None:
    """Slow, dead or odd: the QOS is not known, with a reason."""
    with pytest.raises(LookUpFailed, match=reason):
        commands.qos(asked(tmp_path, script), after(0.5 if "sleep" in script else 60))


def test_without_scontrol_there_is_a_reason(tmp_path: Path) -> None:
    """A controller without Slurm's commands."""
    question = telling(tmp_path)._replace(scontrol=f"{tmp_path}/none")
    with pytest.raises(LookUpFailed, match="No such file"):
        commands.qos(question, after(60))


def test_pyslurm_of_the_running_release_is_asked_instead(tmp_path: Path) -> None:
    """It needs no text to be parsed; scontrol only tells its version."""
    install(tmp_path / "libraries", "high")
    assert commands.qos(telling(tmp_path, "25.11.1"), after(60)) == Answer("high", "pyslurm")
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("version", ["25.05.3", "22.05.8", "26.05.0"])
def test_pyslurm_of_another_release_is_never_loaded(tmp_path: Path, version: str) -> None:
    """It would speak to the wrong libslurm."""
    install(tmp_path / "libraries", "low")
    assert commands.qos(telling(tmp_path, version), after(60)) == Answer("high", "scontrol")


def test_pyslurm_that_can_not_be_loaded_is_as_none(tmp_path: Path) -> None:
    """Libslurm went with an upgrade."""
    install(
        tmp_path / "libraries", "low", broken="raise ImportError('libslurmfull.so: cannot open shared object file')"
    )
    assert commands.qos(telling(tmp_path, "25.11.1"), after(60)) == Answer("high", "scontrol")


def test_a_job_without_a_qos_has_none_by_pyslurm(tmp_path: Path) -> None:
    """Pyslurm says None."""
    install(tmp_path / "libraries", None)
    assert commands.qos(telling(tmp_path, "25.11.1"), after(60)) == Answer("", "pyslurm")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("Job.load = staticmethod(lambda job_id: (_ for _ in ()).throw(RPCError(msg='Invalid job id specified')))",
         "Invalid job id"),
        ("Job.id = 8", "slurmctld answered about job 8"),
        ("Job.load = staticmethod(lambda job_id: __import__('time').sleep(600))", "deadline"),
        ("Job.load = staticmethod(lambda job_id: __import__('os').abort())", "its process died"),
    ],
)  # fmt: skip
def test_one_look_up_is_all_there_is(tmp_path: Path, broken: str, reason: str) -> None:
    """When pyslurm's fails, hangs or crashes, scontrol is not asked as well."""
    install(tmp_path / "libraries", "high", broken=broken)
    with pytest.raises(LookUpFailed, match=reason):
        commands.qos(telling(tmp_path, "25.11.1"), after(0.5 if "sleep" in broken else 60))
    assert not (tmp_path / "asked").exists()


# How a job ended, as squeue of Slurm 22.05 tells it while the epilog runs.


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("7|COMPLETED|None|0|2026-11-21T19:28:52|", ""),
        ("7|COMPLETING|None|0|2026-11-21T19:28:52|", ""),
        ("6|COMPLETING|NonZeroExitCode|512|2026-11-21T19:29:04|\n7|COMPLETING|None|0|2026-11-21T19:29:04|\n", ""),
        ("7|COMPLETING|TimeLimit|15|2026-11-21T19:28:52|", "it ended with status 15, reason TimeLimit"),
        ("7|COMPLETING|TimeLimit|0|2026-11-21T19:28:52|", "it ended with status 0, reason TimeLimit"),
        ("7|TIMEOUT|TimeLimit|0|2026-11-21T19:28:52|", "it is TIMEOUT"),
        ("7|COMPLETING|OutOfMemory|125|2026-11-21T19:28:52|", "it ended with status 125, reason OutOfMemory"),
        ("7|COMPLETING|None|0|NONE|", "it was requeued"),
        ("7|COMPLETING|None", "not known: squeue gives no clear answer"),
        ("", "not known: squeue gives no clear answer"),
        ("6|COMPLETED|None|0|2026-11-21T19:28:52|", "not known: squeue gives no clear answer"),
        ("7|COMPLETED|None|0|2026|\n7|COMPLETED|None|0|2026|", "not known: squeue gives no clear answer"),
    ],
)
def test_what_squeue_says(answer: str, expected: str) -> None:
    """Only a plain answer about this job is one; other tasks of its array do not count."""
    assert commands.parse_outcome(answer, 7) == expected

"""One interface to slurmctld: Slurm's commands, and what wings have in place of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lib.slurmctld import BY_COMMANDS, controller
from warmstart import wing
from warmstart.host.deadline import after
from warmstart.slurm.facts import Access, JobFacts
from warmstart.slurm.slurmctld import LookUpFailed, Slurmctld


@pytest.mark.parametrize(
    ("fits", "answer", "found"),
    [(True, JobFacts(7, "PENDING", "", "", 0), "PENDING"), (True, None, None), (False, None, "RUNNING")],
)
def test_a_wing_that_fits_what_runs_is_asked_in_place_of_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: bool, answer: JobFacts | None, found: str | None
) -> None:
    part = SimpleNamespace(NAME="other", fits=lambda *_: fits, job=lambda *_: answer)
    monkeypatch.setattr(wing, "with_part", lambda name: [f"w.{name}"])
    monkeypatch.setattr(wing, "load", {"w.answers": part}.__getitem__)
    slurmctld = controller(tmp_path)
    job = slurmctld.job(7, after(60))
    assert (job and job.state) == found
    assert slurmctld.source == ("other" if fits else "squeue")


def test_squeue_is_asked_once(tmp_path: Path) -> None:
    slurmctld = controller(tmp_path)
    assert slurmctld.job(7, after(60)) == BY_COMMANDS
    assert slurmctld.source == "squeue"
    assert (tmp_path / "asked").read_text() == "squeue\n"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exec sleep 600", "was killed at its deadline"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        ("echo nonsense", "no clear answer"),
    ],
)
def test_a_controller_that_does_not_answer_is_left_at_the_deadline(tmp_path: Path, script: str, reason: str) -> None:
    """Slow, dead or odd: nothing is known, with a reason."""
    with pytest.raises(LookUpFailed, match=f"about job 7: .*{reason}"):
        controller(tmp_path, script=script).job(7, after(0.5 if "sleep" in script else 60))


def test_without_slurms_commands_there_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(LookUpFailed, match="No such file"):
        Slurmctld(Access(f"{tmp_path}/scontrol")).job(7, after(60))

"""One interface to slurmctld: pyslurm where it fits the running release, Slurm's commands elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.slurmctld import BY_COMMANDS, controller
from tests.lib.wings.specs.fake_pyslurm import JOB, install
from warmstart.host.deadline import after
from warmstart.slurm.slurmctld import LookUpFailed


def test_pyslurm_of_the_running_release_is_asked_instead(tmp_path: Path) -> None:
    install(tmp_path / "libraries")
    slurmctld = controller(tmp_path, "25.11.1")
    assert [slurmctld.job(7, after(60)), slurmctld.job(7, after(60))] == [JOB, JOB]
    assert slurmctld.source == "pyslurm"
    assert not (tmp_path / "asked").exists()


def test_pyslurm_tells_what_is_enforced(tmp_path: Path) -> None:
    install(tmp_path / "libraries")
    slurmctld = controller(tmp_path, "25.11.1")
    assert slurmctld.job(8, after(60)) == JOB._replace(job_id=8)
    assert slurmctld.enforced(after(60)) == ["limits"]


@pytest.mark.parametrize(
    ("attributes", "array"),
    [("array_id = 5; Job.array_task_id = None", "5_0"), ("array_id = None; Job.array_task_id = None", "")],
)
def test_pyslurm_takes_task_0_for_none(tmp_path: Path, attributes: str, array: str) -> None:
    """Seen with 25.11.2: only the array's id tells that a job is in one."""
    install(tmp_path / "libraries", broken=f"Job.{attributes}")
    assert controller(tmp_path, "25.11.1").job(7, after(60)) == JOB._replace(array=array)


@pytest.mark.parametrize("version", ["25.05.3", "22.05.8", "26.05.0"])
def test_pyslurm_of_another_release_is_never_loaded(tmp_path: Path, version: str) -> None:
    """It would speak to the wrong libslurm."""
    install(tmp_path / "libraries", broken="import os; os.abort()")
    assert controller(tmp_path, version).job(7, after(60)) == BY_COMMANDS


def test_pyslurm_that_can_not_be_loaded_is_as_none(tmp_path: Path) -> None:
    install(tmp_path / "libraries", broken="raise ImportError('libslurmfull.so: cannot open shared object file')")
    slurmctld = controller(tmp_path, "25.11.1")
    assert slurmctld.job(7, after(60)) == BY_COMMANDS
    assert slurmctld.source == "squeue"


def test_a_job_that_pyslurm_does_not_know(tmp_path: Path) -> None:
    install(tmp_path / "libraries")
    assert controller(tmp_path, "25.11.1").job(99, after(60)) is None


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("Job.load = staticmethod(lambda job_id: (_ for _ in ()).throw(RPCError(1, 'Unable to contact')))",
         "Unable to contact"),
        ("Job.id = 8", "slurmctld answered about job 8"),
        ("Job.load = staticmethod(lambda job_id: __import__('time').sleep(600))", "deadline"),
        ("Job.load = staticmethod(lambda job_id: __import__('os').abort())", "process that was at work there died"),
        ("Job.state = 1", "expected one of"),
    ],
)  # fmt: skip
def test_one_look_up_is_all_there_is(tmp_path: Path, broken: str, reason: str) -> None:
    """When pyslurm's fails, hangs or crashes, squeue is not asked as well."""
    install(tmp_path / "libraries", broken=broken)
    slurmctld = controller(tmp_path, "25.11.1")
    slurmctld.enforced(after(60))  # so that the release is known, which a command is asked for
    with pytest.raises(LookUpFailed, match=reason):
        slurmctld.job(7, after(0.5 if "sleep" in broken else 60))
    assert not (tmp_path / "asked").exists()

"""What the controller's hooks write down, and that nobody ever sees half of it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tests.lib.runs import a_job
from warmstart.wings.specs import controller

ARRAY = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of a job's spec in a directory that is ours."""
    (tmp_path / "specs").mkdir(mode=0o755)
    return str(tmp_path / "specs" / "c1.7.json")


def test_a_spec_is_what_the_environment_says() -> None:
    told = controller.spec_of(a_job(cluster="c1", comment="x", restarts=2), {"SLURM_JOB_NAME": "a b\n", **ARRAY})
    assert told[:4] == ("c1", 7, 64201, 2)
    assert (told.job_name, told.array, told.comment, told.qos) == ("a b\n", "7_3", "x", None)
    assert controller.spec_of(a_job(qos="high"), {}).array == ""


def test_a_text_too_long_to_be_true_is_unknown() -> None:
    """A name that is cut would match what the whole does not."""
    assert controller.spec_of(a_job(), {"SLURM_JOB_NAME": "x" * 5000}).job_name is None


def test_a_spec_is_readable_for_all_and_writable_for_its_owner(path: str) -> None:
    controller.publish(path, "{}")
    assert os.stat(path).st_mode & 0o7777 == 0o644
    assert os.listdir(os.path.dirname(path)) == ["c1.7.json"]


def test_a_full_disk_leaves_what_was_there(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    controller.publish(path, '{"old": 1}')

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        controller.publish(path, '{"new": 1}')
    assert json.loads(Path(path).read_text()) == {"old": 1}
    assert os.listdir(os.path.dirname(path)) == ["c1.7.json"]


def test_removing_takes_this_job_s_files_only(path: str) -> None:
    directory = Path(path).parent
    controller.publish(path, "{}")
    for name in (".c1.7.json.123.tmp", ".c1.77.json.123.tmp", "c1.77.json", ".c1.7.json.kept"):
        (directory / name).touch()
    assert controller.remove(path) is True
    assert sorted(os.listdir(directory)) == [".c1.7.json.kept", ".c1.77.json.123.tmp", "c1.77.json"]
    assert controller.remove(path) is False


def test_nothing_is_written_where_no_node_would_believe_it(path: str) -> None:
    """The controller looks at the directory as the nodes do, and says so at once."""
    Path(path).parent.chmod(0o775)
    with pytest.raises(OSError, match="can be written by others"):
        controller.publish(path, "{}")

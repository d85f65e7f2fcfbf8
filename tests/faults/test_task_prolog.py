"""The task prolog: which calls of it change something, and what it does when they or those that read fail.

It runs as the job's user, and only prints. The one thing it can change is the link at the constant path
(`constant_path: link`), so one call stands for its whole sweep.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "packaging/libexec/task-prolog.in"
# Calls that change a file or what processes see of it; writing to what Slurm reads is the task prolog's work.
CHANGING = re.compile(
    r"""^\d+\s+(?:
        (?:mkdir|mknod|link|symlink|rename|unlink|rmdir|f?chmod|l?f?chown|truncate|ftruncate|utime\w*|futimesat)\w*\(
        | (?:[lf]?(?:set|remove)xattr|u?mount|umount2|move_mount|pivot_root|chroot|fallocate|kill|tgkill)\(
        | open(?:at|at2)?\(.*O_(?:CREAT|TRUNC|WRONLY|RDWR)
        | creat\( | pwrite\w*\( | write\((?!1<)
    )""",
    re.VERBOSE,
)


DEVICE = re.compile(r'/dev/(?:null|tty)[">]')  # bash, which names the parent, opens the latter


class Job(NamedTuple):
    """A job whose view is there, and whose constant path is `private/job`."""

    top: Path

    @property
    def view(self) -> Path:
        return self.top / "view/7"

    @property
    def cache(self) -> Path:
        return self.top / "run/cache"

    @property
    def constant(self) -> Path:
        """The path that the cache of each job has."""
        return self.top / "private/job"

    @property
    def notice(self) -> list[str]:
        """What the task prolog of a batch script prints of its notice."""
        return ["print cold today", f"export WARMSTART_NOTICES={self.view}/notice"]

    def task_prolog(self, *inject: str, step: str = "batch", told: str = "") -> tuple[int, list[str], list[str]]:
        """Run the task prolog of a step under strace, with `inject` among its arguments.

        `told` is the notices' path as the SPANK plugin sets it. Returns status, lines, changing calls.
        """
        log = self.top / "strace"
        strace = ["/usr/bin/strace", "-f", "-y", "-qq", "-e", "signal=none", *inject, "-o", str(log)]
        ended = subprocess.run(
            # Its parent is the task, a process of the step's daemon.
            [*strace, "/bin/bash", "-c", f"exec -a 'slurmstepd: [7.{step}]' /bin/sh -c '/bin/sh \"$0\"; exit' \"$0\"",
             str(self.top / "task-prolog")],
            env={"SLURMD_NODENAME": "node", "SLURM_JOB_ID": "7", **({"WARMSTART_NOTICES": told} if told else {})},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.stderr == ""  # Slurm parses it
        calls = [line for line in log.read_text().splitlines() if CHANGING.search(line) and not DEVICE.search(line)]
        return ended.returncode, ended.stdout.splitlines(), calls


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job with a notice and variables, under a policy without links."""
    made = Job(tmp_path)
    for directory in (made.view, made.cache, made.constant.parent):
        directory.mkdir(parents=True)
    (tmp_path / "task-prolog").write_text(SOURCE.read_text().replace("@RUN@", str(tmp_path)))
    (made.view / "notice").write_text("cold today\n")
    (made.view / "environment").write_text(f"{tmp_path}/run\n{made.constant}\n{made.cache}\nA={made.constant}/a\n")
    return made


def test_it_changes_nothing(job: Job) -> None:
    assert job.task_prolog() == (0, [*job.notice, f"export A={job.cache}/a"], [])
    (job.view / "verdict").write_text("no image\n")
    assert job.task_prolog() == (1, ["print no image"], [])
    job.view.rename(job.view.with_name("8"))
    assert job.task_prolog() == (0, [], [])


def test_only_a_batch_script_prints_notices(job: Job) -> None:
    """A step's output belongs to whoever called srun; what the SPANK plugin has told is told."""
    printed, variable = job.notice
    for step, told in (
        ("0", ""),
        ("interactive", ""),
        ("batch", str(job.view / "notice")),
        ("0", "/other/view/6/notice"),
    ):
        assert job.task_prolog(step=step, told=told)[1][:-1] == [variable]
    assert job.task_prolog(told="/other/view/6/notice")[1][:-1] == [printed, variable]
    (job.view / "notice").unlink()
    assert job.task_prolog(told="/other/view/6/notice")[1][:-1] == ["unset WARMSTART_NOTICES"]
    assert job.task_prolog()[1][:-1] == []


def test_its_one_change_is_the_link(job: Job) -> None:
    (job.view / "link").touch()
    told = [*job.notice, f"export A={job.constant}/a"]
    status, lines, (call,) = job.task_prolog()
    assert (status, lines, "symlink" in call) == (0, told, True)
    assert job.task_prolog() == (0, told, [])


# strace's `signal` comes when the call has returned: with an error beside it, the process dies before the change.
@pytest.mark.parametrize("fault", ["EIO:signal=KILL", "EIO", "EROFS", "ENOSPC", "EDQUOT"])
def test_no_link_costs_the_constant_path_only(job: Job, fault: str) -> None:
    (job.view / "link").touch()
    status, lines, calls = job.task_prolog("-e", f"inject=symlink,symlinkat:error={fault}")
    assert (status, lines, len(calls)) == (0, [*job.notice, f"export A={job.cache}/a"], 1)
    assert not os.path.lexists(job.constant)
    assert job.task_prolog()[1] == [*job.notice, f"export A={job.constant}/a"]
    assert job.constant.readlink() == job.cache


@pytest.mark.parametrize("fault", ["openat:error=EIO", "openat:error=EMFILE", "read:error=EIO"])
@pytest.mark.parametrize(
    ("file", "status", "told"),
    [
        ("verdict", 1, []),
        ("notice", 0, ["export WARMSTART_NOTICES=@/view/7/notice", "export A=@/run/cache/a"]),
        ("environment", 0, ["print cold today", "export WARMSTART_NOTICES=@/view/7/notice"]),
    ],
)
def test_a_view_that_cannot_be_read(job: Job, file: str, status: int, told: list[str], fault: str) -> None:
    if file == "verdict":
        (job.view / "verdict").write_text("no image\n")
    done = job.task_prolog("-P", str(job.view / file), "-e", f"inject={fault}")
    assert done == (status, [line.replace("@", str(job.top)) for line in told], [])

"""Child processes of a hook: none is waited for longer than there is time."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess

import pytest

from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.identity import ProgramNotStarted


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # it is left on purpose
def test_a_program_that_can_not_be_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs in the kernel, on a file system that does not answer: the hook goes on without it."""
    hanging: list[int] = []
    monkeypatch.setattr(process, "REAP_S", 0.1)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: hanging.append(process.pid))
    with pytest.raises(process.ProgramTooSlow):
        process.run(["/bin/sleep", "60"], deadline=after(0.1))
    monkeypatch.undo()
    (pid,) = hanging
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    gc.collect()


def test_nothing_of_a_program_stays_open() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    assert process.run(["/bin/echo", "a"], deadline=after(60)).stdout == b"a\n"
    with pytest.raises(process.ProgramTooSlow):
        process.run(["/bin/sleep", "60"], deadline=after(0.1))
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_node_without_descriptors_left_is_not_ours_to_mend() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (used[-1] + 1, hard))
    try:
        with pytest.raises(ProgramNotStarted) as failed:
            process.run(["/bin/true"], deadline=after(60))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in used:
            os.close(fd)
    assert failed.value.kind == "resource"

"""A worker takes its identity for good, or nothing runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warmstart.host.deadline import after
from warmstart.host.identity import Identity, WorkerSilent, confine
from warmstart.host.worker import Worker, WorkerBug

NOBODY = Identity("nobody", 65534, 65534)


def ids() -> list[int]:
    return [*os.getresuid(), *os.getresgid(), *os.getgroups()]


def network_interfaces() -> list[str]:
    with open("/proc/self/net/dev", encoding="ascii") as file:
        return [line.split(":")[0].strip() for line in file if ":" in line]


def grow(path: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write("x")


def test_an_identity_that_can_not_be_taken_is_a_bug_that_says_so() -> None:
    with pytest.raises(WorkerBug, match="become"):
        Worker(Identity("nobody-ever", -2, 65534)).run(after(60), ids)


@pytest.mark.threat(6)
def test_the_identity_is_taken_for_good() -> None:
    assert Worker(NOBODY).run(after(60), ids) == [65534] * 6


@pytest.mark.threat(7)
def test_a_confined_worker_has_no_network_and_writes_nothing(base: Path) -> None:
    """What parses hostile bytes sees no interface but a loopback that is down, and can't grow a file."""
    open_to_all = base / "file"
    open_to_all.touch()
    open_to_all.chmod(0o666)
    worker = Worker(NOBODY, take=confine)
    assert worker.run(after(60), network_interfaces) in ([], ["lo"])
    with pytest.raises((OSError, WorkerSilent)):
        worker.run(after(60), grow, str(open_to_all))
    assert open_to_all.read_text() == ""

"""The way out of an import: refused where the kernel gives none, and gone with its program."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warmstart.host import netns
from warmstart.host.identity import Identity
from warmstart.images.importers import egress
from warmstart.images.importers.egress import Destinations

NOBODY = Identity("nobody", 65534, 65534)


def own_namespace() -> str:
    """Return which network namespace we are in."""
    return os.readlink(netns.OWN)


def children() -> list[str]:
    """Return our children's pids."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_it_is_another_namespace_and_ends() -> None:
    """We are where we were, its process is the import account's and holds nothing of ours; afterwards all is gone."""
    before, descriptors, known = own_namespace(), sorted(os.listdir("/proc/self/fd")), set(children())
    lock = os.open("/tmp", os.O_RDONLY)
    with egress.opened(NOBODY, Destinations("127.0.0.1:5000")) as way:
        assert own_namespace() == before
        assert os.readlink(f"/proc/self/fd/{way.namespace}") != before
        (pid,) = set(children()) - known
        assert way.environment["https_proxy"] == "http://127.0.0.1:3128"
        assert way.refused() == ""
        for _ in range(2000):
            if f"Uid:\t{NOBODY.uid}" in Path(f"/proc/{pid}/status").read_text():
                break
            time.sleep(0.005)
        else:
            pytest.fail("it is still root")
        held = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        assert "/tmp" not in held
    os.close(lock)
    assert own_namespace() == before
    assert set(children()) == known
    assert sorted(os.listdir("/proc/self/fd")) == descriptors


def test_a_failure_leaves_us_where_we_were() -> None:
    """An address that is not there in the new namespace: no half of one stays, and it is no node's fault."""
    before, descriptors = own_namespace(), sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="assign requested address"), netns.enclosure([("192.0.2.77", 1)]):
        pytest.fail("there is no such address")
    assert own_namespace() == before
    assert sorted(os.listdir("/proc/self/fd")) == descriptors


def test_a_program_whose_outlet_died_is_told_at_once() -> None:
    """Refused, and not left in a queue that nobody serves until the import's deadline."""
    known = set(children())
    with egress.opened(NOBODY, Destinations("reg.io")) as way:
        (pid,) = set(children()) - known
        os.kill(int(pid), signal.SIGKILL)
        os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)
        connect = f"import socket; socket.create_connection({egress.PROXY!r}, 5)"
        argv = ["nsenter", f"--net=/proc/self/fd/{way.namespace}", "--", sys.executable, "-c", connect]
        ended = subprocess.run(argv, pass_fds=[way.namespace], capture_output=True, text=True, check=False)
    assert "ConnectionRefusedError" in ended.stderr


@pytest.mark.parametrize("call", ["fork", "pipe2"])
def test_no_process_or_descriptor_left(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """A limit that is met is a sentence, no bug; nothing stays open."""

    def refuse(*_: int) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    descriptors = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(egress.EgressUnusable, match="temporarily"), egress.opened(NOBODY, Destinations("reg.io")):
        pytest.fail("there is none")
    assert sorted(os.listdir("/proc/self/fd")) == descriptors


def test_a_kernel_that_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's import fails with a sentence; the node stays in service."""
    monkeypatch.setattr(egress, "PROXY", ("192.0.2.77", 1))
    with (
        pytest.raises(egress.EgressUnusable, match="assign requested address"),
        egress.opened(NOBODY, Destinations("reg.io")),
    ):
        pytest.fail("there is no such address")

"""A systemd of its own, in a root file system of `tests/releases/packages/fresh`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lib.processes import parents, wait_until

INIT = """\
mount -t tmpfs none /run
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
exec env container=docker /lib/systemd/systemd --unit=nothing.target --show-status=0
"""


class Systemd:
    """A systemd that runs nothing but what is started."""

    def __init__(self, pid: int) -> None:
        self._enter = ["nsenter", "-t", str(pid), "-a"]

    def run(self, *argv: str) -> str:
        """Run a command there that succeeds; return its output."""
        done = subprocess.run([*self._enter, *argv], check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def ctl(self, *words: str) -> str:
        return self.run("systemctl", *words)

    def shows(self, unit: str, name: str) -> str:
        return self.ctl("show", "--value", "-p", name, unit)

    def process(self, script: str) -> subprocess.Popen[str]:
        """Start a shell there; its pid is one of that system."""
        return subprocess.Popen([*self._enter, "sh", "-c", script], stdout=subprocess.PIPE, text=True)


@contextmanager
def started() -> Iterator[Systemd]:
    """Start it, and kill it with all that it runs."""
    Path("/etc/systemd/system/nothing.target").write_text("[Unit]\n")
    argv = ["unshare", "--pid", "--fork", "--mount", "--cgroup", "--mount-proc", "sh", "-c", INIT]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as outside:
        wait_until("systemd", lambda: outside.pid in parents().values(), 10)
        inside = next(pid for pid, parent in parents().items() if parent == outside.pid)
        systemd = Systemd(inside)
        try:
            wait_until("its bus", lambda: _answers(systemd), 30)
            yield systemd
        finally:
            os.kill(inside, signal.SIGKILL)


def _answers(systemd: Systemd) -> bool:
    try:
        return systemd.ctl("show", "-p", "Version") != ""
    except AssertionError:
        return False

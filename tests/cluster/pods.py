"""A stand-in for a privileged pod: namespaces of its own, a /dev that is a copy made at its start, /tmp in memory.

It has the host's network, root file system and cgroups. Its process 1 reaps, as tini does.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.cluster.processes import parents, wait_until

_INIT = """
new=$(mktemp -d)
mount -t tmpfs -o nosuid,mode=0755 pod "$new"
for name in null zero full random urandom tty fuse loop-control; do cp -a "/dev/$name" "$new/"; done
mkdir "$new/shm" "$new/pts"
chmod 1777 "$new/shm"
mount --bind /dev/pts "$new/pts"
ln -s /proc/self/fd "$new/fd"
ln -s pts/ptmx "$new/ptmx"
mount --move "$new" /dev
rmdir "$new"
mount -t tmpfs -o mode=1777 pod /tmp
echo ready
while :; do sleep 60 & wait; done
"""


class Pod(NamedTuple):
    """A pod that runs."""

    process: subprocess.Popen[str]
    init: int  # its process 1, by its pid outside

    @property
    def enter(self) -> tuple[str, ...]:
        """The words before a command that runs there."""
        return ("/usr/bin/nsenter", f"--target={self.init}", "--mount", "--pid", "--uts", "--ipc", "--")

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command there."""
        return subprocess.run([*self.enter, *argv], capture_output=True, text=True, check=False, timeout=300)

    def kill(self) -> None:
        """End it with all of its processes, as a machine that has no memory left, or an impatient admin does."""
        self.process.kill()  # its child, process 1, is killed with it, and with that all others
        self.process.wait()
        wait_until("the pod's end", lambda: not os.path.exists(f"/proc/{self.init}"), 20)


@contextmanager
def started() -> Iterator[Pod]:
    """Start a pod; kill it at the end."""
    own = ["--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child", "--propagation=private"]
    with subprocess.Popen(
        ["/usr/bin/unshare", *own, "/bin/sh", "-euc", _INIT], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            pod = Pod(process, next(pid for pid, parent in parents().items() if parent == process.pid))
            yield pod
        finally:
            process.kill()

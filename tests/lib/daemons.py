"""The daemons of a cluster: munged as `munge`, slurmctld as `slurm`, slurmds as root.

Facts: munge 0.5.15 and Slurm 22.05 as in Debian 12; `slurmd -N NODE` allows several on one host, each
with its own port, spool, pid file and log. Each is in a room of its own (`rooms`).
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lib import config, processes, rooms
from tests.lib.accounts import Account, lookup
from warmstart.paths import Installation

if TYPE_CHECKING:
    from collections.abc import Sequence

_START_S = 30


class Daemons:
    """All daemons of the cluster in `base`; `start` first."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._conf = base / "etc" / "slurm.conf"
        self._node_ports: dict[str, int] = {}
        self._others: list[subprocess.Popen[bytes]] = []
        self._slurmctld: tuple[subprocess.Popen[bytes], int] | None = None
        self._slurmds: dict[str, subprocess.Popen[bytes]] = {}
        self._parents = processes.Parents()
        self._rooms: dict[str, subprocess.Popen[bytes]] = {}
        self.moved: dict[str, Sequence[str]] = {}  # by node: the words to enter another namespace than its room

    @property
    def environment(self) -> dict[str, str]:
        """What a Slurm command needs to find this cluster."""
        return {"SLURM_CONF": str(self._conf)}

    @property
    def started(self) -> bool:
        """Whether the daemons have been started."""
        return bool(self._slurmds)

    def start(self, prefix: Path, *, namespace: config.Namespace | None, cpus: int, proctrack: str) -> None:
        """Write the configuration for hooks at `prefix` and start everything, slurmds last."""
        for name in ("log", "run", "spool", *(f"spool/{node}" for node in config.NODES)):
            (self._base / name).mkdir()
        installation = Installation(str(prefix))
        own = {self._base / "workspace": 0o755, Path(installation.runtime): 0o755}
        rooms.divide(self._base, own, config.NODES)
        ready = {node: self._base / "run" / f"room.{node}" for node in config.NODES}
        for node, file in ready.items():
            argv = rooms.a_room(node, own)
            self._rooms[node] = processes.start(self._base, file.name, argv, environment={"READY": str(file)})
        processes.wait_until("all rooms", lambda: all(file.exists() for file in ready.values()), _START_S)
        controller, self._node_ports = config.write(
            self._base, prefix, namespace=namespace, cpus=cpus, proctrack=proctrack
        )
        self._start_munged()
        self._start_slurmctld(controller)
        for node in config.NODES:
            self._launch_slurmd(node)
        for node in config.NODES:
            self._wait_for_slurmd(node)

    def start_slurmd(self, node: str) -> None:
        """Start a node's slurmd and wait until it listens."""
        self._launch_slurmd(node)
        self._wait_for_slurmd(node)

    def _launch_slurmd(self, node: str) -> None:
        argv = [*self.enter(node), "/usr/sbin/slurmd", "-D", "-N", node, "-f", str(self._conf)]
        self._slurmds[node] = processes.start(self._base, f"slurmd.{node}", argv, environment=self.environment)

    def _wait_for_slurmd(self, node: str) -> None:
        port = self._node_ports[node]
        processes.wait_until(f"slurmd of {node}", lambda: config.listening(port), _START_S)

    def enter(self, node: str) -> Sequence[str]:
        """Return the words before a command that runs where a node's slurmd does (nsenter(1))."""
        return self.moved.get(node) or rooms.enter(self._rooms[node].pid)

    def kill_slurmd(self, node: str) -> None:
        """Kill a node's slurmd with SIGKILL. Its hooks and jobs go on."""
        process = self._slurmds.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def restart_slurmctld(self) -> None:
        """Stop slurmctld as systemd does and start it again; it reads slurm.conf again and keeps state and jobs."""
        assert self._slurmctld is not None, "the cluster is not started"
        process, port = self._slurmctld
        self._others.remove(process)
        process.terminate()
        process.wait(_START_S)
        self._start_slurmctld(port)

    def pids(self) -> dict[str, int]:
        """Return the pids of slurmctld (`slurmctld`) and of each node's slurmd (`slurmd n1`)."""
        assert self._slurmctld is not None, "the cluster is not started"
        slurmds = {f"slurmd {node}": process.pid for node, process in self._slurmds.items()}
        return {"slurmctld": self._slurmctld[0].pid, **slurmds}

    def running_hooks(self) -> bool:
        """Whether any slurmd has a child: in 22.05 its only children are hooks and new steps."""
        return self._parents.any_child({process.pid for process in self._slurmds.values()})

    def reap(self) -> None:
        """Wait for the daemons after they were killed."""
        for process in (*self._others, *self._slurmds.values(), *self._rooms.values()):
            process.wait()

    def _start_munged(self) -> None:
        munge = lookup("munge", self._base)
        home = self._base / "munge"
        _own(home, munge, 0o755)
        (home / "key").touch(mode=0o600)
        (home / "key").write_bytes(os.urandom(128))
        os.chown(home / "key", munge.uid, munge.gid)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={home}/{name}" for option, name in files.items()]
        argv = ["/usr/sbin/munged", "--foreground", *options]
        self._others.append(processes.start(self._base, "munged", argv, account=munge))
        processes.wait_until("munged", (home / "socket").exists, _START_S)

    def _start_slurmctld(self, port: int) -> None:
        slurm = lookup("slurm", self._base)
        if not (self._base / "slurmctld").exists():
            _own(self._base / "slurmctld", slurm, 0o700)
        log = self._base / "log" / "slurmctld.log"
        log.touch()
        os.chown(log, slurm.uid, slurm.gid)
        argv = ["/usr/sbin/slurmctld", "-D", "-f", str(self._conf)]
        process = self._start_as(slurm, "slurmctld", argv)
        self._others.append(process)
        self._slurmctld = process, port
        processes.wait_until("slurmctld", lambda: config.listening(port), _START_S)

    def _start_as(self, account: Account, name: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        return processes.start(self._base, name, argv, account=account, environment=self.environment)


def _own(path: Path, account: Account, mode: int) -> None:
    path.mkdir(mode=mode)
    os.chown(path, account.uid, account.gid)

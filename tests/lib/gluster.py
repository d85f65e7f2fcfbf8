"""GlusterFS on this host: three bricks (replica 3, client quorum), or one; root squash, and any number of FUSE clients.

The servers have mount, network and PID namespaces of their own, so that they meet no other GlusterFS of the host and
end together. Each client of a node has a mount namespace, which the node's slurmd enters: nodes share the volume and
nothing else of it, as on a real site. Facts: glusterfs 10.3 as in Debian 12.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.lib import mounts, processes
from tests.lib.teardown import unmount

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from tests.lib.accounts import Account

PROGRAMS = {"/usr/sbin/glusterd": "glusterfs-server", "/usr/sbin/glusterfs": "glusterfs-client"}
VOLUME = "warmstart"
BRICKS = (1, 2, 3)
PING_S = 3  # after which a client gives up a brick that does not answer (network.ping-timeout)
_ADDRESS = "10.64.0.1"  # in the servers' network namespace; glusterd takes no loopback address for a brick
_START_S = 60
_INODES = 400_000
_THREADS = (
    "performance.io-thread-count",
    "performance.high-prio-threads",
    "performance.normal-prio-threads",
    "performance.low-prio-threads",
)
# glusterd has its paths compiled in: each place is covered by a directory of ours. sh reaps the daemons' orphans.
_INIT = """\
mount --bind "$1/lib" /var/lib/glusterd
mount --bind "$1/log" /var/log/glusterfs
mount -t tmpfs none /run
mkdir /run/gluster
ip link set lo up
ip address add {address}/32 dev lo
glusterd --no-daemon
"""
# A line for each kind of operation: its share of the time, three latencies in ns or us, the number of calls, the name.
_PROFILE_LINE = re.compile(r"^ +[\d.]+(?: +[\d.]+ [nu]s){3} +(\d+) +([A-Z]+)$", re.MULTILINE)
_FREED = frozenset({"FORGET", "RELEASE", "RELEASEDIR"})  # no operation: a server forgets a file
_CACHES = ("attribute-timeout", "entry-timeout", "negative-timeout")


class Client(NamedTuple):
    """A FUSE client. `enter` are the words that run a command in its mount namespace."""

    process: subprocess.Popen[bytes]
    enter: tuple[str, ...]

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the client (SIGSTOP) during a `with` block: whoever uses the volume through it hangs."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


class Gluster:
    """Context manager: a started volume that belongs to `owner`, with everything below `base/gluster`."""

    def __init__(self, base: Path, owner: Account, bricks: Sequence[int] = BRICKS, brick_size: str = "384m") -> None:
        """Use so many bricks of this size, in memory, which all have the same files."""
        self._bricks = bricks
        self._brick_size = brick_size
        self._base = base
        self._home = base / "gluster"
        self._owner = owner
        self._servers: subprocess.Popen[bytes] | None = None
        self._clients: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Gluster:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def client(
        self,
        name: str,
        target: Path,
        *,
        cached_s: float | None = None,
        alone: bool = True,
        enter: Sequence[str] = (),
    ) -> Client:
        """Mount the volume on `target`, which must exist, in a mount namespace of the client's own.

        That is a copy of the one that the words `enter` lead into.

        `cached_s`: for so long the client shows attributes and names as they were, and that a name was missing;
        by default as mount.glusterfs(8) has it: a second, and misses not at all.
        `alone=False`: in this process's mount namespace instead.
        """
        options = [] if cached_s is None else [f"--{option}={cached_s:g}" for option in _CACHES]
        argv = [
            *enter, "/usr/bin/nsenter", f"--net=/proc/{self._init}/ns/net", "--",
            *(("/usr/bin/unshare", "--mount", "--propagation=private", "--") if alone else ()),
            "/usr/sbin/glusterfs", "--no-daemon", f"--volfile-server={_ADDRESS}", f"--volfile-id={VOLUME}",
            f"--log-file={self._home}/log/client.{name}.log", *options, str(target),
        ]  # fmt: skip
        process = processes.start(self._base, f"gluster.{name}", argv)
        self._clients.append(process)
        made = Client(process, ("/usr/bin/nsenter", f"--mount=/proc/{process.pid}/ns/mnt", "--") if alone else ())
        processes.wait_until(f"the client of {name}", lambda: _is_mounted(process, target), _START_S)
        if not alone:
            self._stack.callback(unmount, str(target))
        return made

    # --- faults

    def brick(self, number: int) -> Path:
        """Return the directory of a brick: the volume's files as that server keeps them."""
        return self._home / f"brick{number}" / "data"

    def brick_pid(self, number: int) -> int:
        """Return the pid, on the host, of a brick's server."""
        name = str(self.brick(number)).encode()
        (pid,) = (pid for pid in processes.children(self._init) if name in processes.arguments(pid))
        return pid

    def kill_brick(self, number: int) -> None:
        """Kill a brick's server with SIGKILL; its clients see that the connection ends."""
        os.kill(self.brick_pid(number), signal.SIGKILL)
        self._wait_bricks({number: False})

    def start_bricks(self) -> None:
        """Start the bricks that are down, and wait until every client has them again and nothing has to be healed."""
        self.cli("volume", "start", VOLUME, "force")
        self._wait_bricks(dict.fromkeys(BRICKS, True))
        processes.wait_until("a connected volume", self._is_connected, 60)
        self.cli("volume", "heal", VOLUME)
        processes.wait_until("a healed volume", self._is_healed, 120)

    def set_delay(self, milliseconds: float) -> None:
        """Let each operation at a brick wait, all of them at once. Bricks start anew: no client may be mounted."""
        self.cli("volume", "stop", VOLUME)
        options = {
            "debug.delay-gen": "posix",
            "delay-gen.delay-percentage": 100 if milliseconds else 0,
            "delay-gen.delay-duration": max(int(milliseconds * 1000), 1),  # what runs takes no other
            **dict.fromkeys(_THREADS, 64),  # each sleeps with its operation
        }
        for option, value in options.items():
            self.cli("volume", "set", VOLUME, option, str(value))
        self.cli("volume", "start", VOLUME)
        self._wait_bricks(dict.fromkeys(self._bricks, True))

    # --- operations at the servers

    def count(self) -> dict[str, int]:
        """Return how many operations of each kind the three bricks have served since the last call."""
        text = self.cli("volume", "profile", VOLUME, "info", "incremental")
        counts: dict[str, int] = {}
        for number, name in _PROFILE_LINE.findall(text):
            if name not in _FREED:
                counts[name] = counts.get(name, 0) + int(number)
        return dict(sorted(counts.items()))

    # --- inside

    def cli(self, *arguments: str) -> str:
        """Run gluster(8) in the servers' namespaces. Raises RuntimeError."""
        done = subprocess.run(
            [*self._enter, "/usr/sbin/gluster", "--mode=script", *arguments],
            check=False, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"gluster {' '.join(arguments)}: {done.stdout.strip()} {done.stderr.strip()}")
        return done.stdout

    @property
    def _init(self) -> int:
        """The first process of the servers' namespaces."""
        assert self._servers is not None, "the servers are not started"
        return min(processes.children(self._servers.pid))

    @property
    def _enter(self) -> tuple[str, ...]:
        return ("/usr/bin/nsenter", f"--target={self._init}", "--net", "--mount", "--pid", "--")

    def _start(self) -> None:
        for name in ("lib", "log"):
            (self._home / name).mkdir(parents=True)
        for name in ("/var/lib/glusterd", "/var/log/glusterfs"):
            Path(name).mkdir(parents=True, exist_ok=True)
        (self._home / "log" / "bricks").mkdir()
        for number in self._bricks:
            self._stack.enter_context(mounts.tmpfs(self.brick(number).parent, self._brick_size, _INODES))
            self.brick(number).mkdir()
        namespaces = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private")
        init = _INIT.format(address=_ADDRESS)
        argv = ["/usr/bin/unshare", *namespaces, "--", "/bin/sh", "-ec", init, "glusterd", str(self._home)]
        self._servers = processes.start(self._base, "glusterd", argv)
        processes.wait_until("glusterd", self._answers, _START_S)
        bricks = [f"{_ADDRESS}:{self.brick(number)}" for number in self._bricks]
        replicas = ["replica", str(len(bricks))] if len(bricks) > 1 else []
        self.cli("volume", "create", VOLUME, *replicas, *bricks, "force")
        options = {
            "network.ping-timeout": PING_S,
            **({"cluster.quorum-type": "auto"} if replicas else {}),
            "server.root-squash": "on",
            "storage.owner-uid": self._owner.uid,
            "storage.owner-gid": self._owner.gid,
        }
        for option, value in options.items():
            self.cli("volume", "set", VOLUME, option, str(value))
        self.cli("volume", "start", VOLUME)
        self.cli("volume", "profile", VOLUME, "start")
        self._wait_bricks(dict.fromkeys(self._bricks, True))

    def _stop(self) -> None:
        for process in self._clients:
            process.send_signal(signal.SIGCONT)
        self._stack.close()
        for process in self._clients:
            processes.stop(process)
        if self._servers is not None:
            self._servers.kill()  # and with it all in its namespaces: unshare(1), --kill-child
            self._servers.wait()

    def _answers(self) -> bool:
        assert self._servers is not None, "the servers are not started"
        if self._servers.poll() is not None:
            raise RuntimeError(
                f"glusterd ended with status {self._servers.returncode}; see its log in {self._base}/log"
            )
        try:
            self.cli("volume", "list")
        except (RuntimeError, ValueError):  # no first process yet
            return False
        return True

    def _status(self) -> dict[int, tuple[bool, int]]:
        """Return for each brick whether it is online, and its pid in the servers' namespace."""
        found: dict[int, tuple[bool, int]] = {}
        text = self.cli("volume", "status", VOLUME, "--xml")
        for node in re.findall(r"<node>(.*?)</node>", text, re.DOTALL):
            fields = dict(re.findall(r"<(path|status|pid)>([^<]*)<", node))
            if brick := re.search(r"/brick(\d)/data$", fields["path"]):
                found[int(brick[1])] = fields["status"] == "1", int(fields["pid"])
        return found

    def _wait_bricks(self, wanted: dict[int, bool]) -> None:
        def is_so() -> bool:
            status = self._status()
            return all(number in status and status[number][0] is online for number, online in wanted.items())

        processes.wait_until(f"bricks {wanted}", is_so, _START_S)

    def _is_connected(self) -> bool:
        """Whether each brick has a connection of each client, and of the daemon that heals."""
        text = self.cli("volume", "status", VOLUME, "clients")
        numbers = [int(number) for number in re.findall(r"^Clients connected : (\d+)$", text, re.MULTILINE)]
        live = sum(process.poll() is None for process in self._clients)
        return len(numbers) == len(BRICKS) and min(numbers) > live

    def _is_healed(self) -> bool:
        text = self.cli("volume", "heal", VOLUME, "info")
        return re.findall(r"^Number of entries: (\S+)$", text, re.MULTILINE) == ["0"] * len(BRICKS)


def _is_mounted(process: subprocess.Popen[bytes], target: Path) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"the client of {target} ended with status {process.returncode}")
    try:
        return f" {target} " in Path(f"/proc/{process.pid}/mountinfo").read_text()
    except OSError:
        return False

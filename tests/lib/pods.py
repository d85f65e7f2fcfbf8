"""A cluster whose nodes are stand-ins for privileged pods, as SchedMD's Slinky has them (docs/guides/kubernetes.md).

A pod has mount, pid, uts, ipc and network namespaces of its own; a root that is an overlay on the host's, /tmp in
memory, and a /dev that is made at its start. Its process 1 is Debian's supervisord, which runs slurmd and warmstart's
programs with the files of `packaging/slinky`. slurmd is a dynamic node and has its configuration, prolog and epilog
from slurmctld; `auth/slurm`, or munge where Slurm has only that. Each pod has a volume of its own for state and
workspace; the rest of the cluster's directory stands for volumes of all pods, and what is mounted there appears in
pods, too.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.lib import config, host, processes, teardown
from tests.lib.accounts import lookup
from tests.lib.cluster import Cluster
from tests.lib.daemons import Daemons
from warmstart.paths import Installation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.lib.accounts import Account

_ROOT = Path(__file__).resolve().parents[2]
SLINKY = _ROOT / "packaging" / "slinky"
_CHROOT = Path(__file__).with_name("chroot.c")
IMAGES_PLUGSTACK = "/usr/share/warmstart/plugstack.conf.d"
_START_S = 120
_END_S = 150  # terminationGracePeriodSeconds of values.yaml
_AUTH = "AuthType=auth/slurm\nCredType=auth/slurm\n"
_OWN = """\
SlurmctldParameters=enable_configless
MaxNodeCount=8"""
_SUPERVISORD = """\
[supervisord]
nodaemon=true
user=root
logfile=/dev/null
logfile_maxbytes=0
pidfile=/run/supervisord.pid
[include]
files=/etc/supervisor/conf.d/*.conf
[program:slurmd]
command=/usr/sbin/slurmd -D -Z -N {node} --conf-server {server} --conf CPUs={cpus}
autorestart=true
stdout_logfile=/dev/stdout
stdout_logfile_maxbytes=0
redirect_stderr=true
"""
# In the host's pid namespace, where the test's process ($host) can be named; the pod's network is already its own.
_CABLE = """
ip link add eth0 type veth peer name "$cable" netns "$host"
nsenter --net="/proc/$host/ns/net" ip link set "$cable" master "$bridge" up
ip link set lo up
ip address add "$address/24" dev eth0
ip link set eth0 up
ip route add default via "$gateway"
exec unshare --mount --pid --uts --ipc --fork --kill-child --propagation=slave sh -euc "$init"
"""
_INIT = """
hostname "$node"
mount -t tmpfs -o mode=0755 pod /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work image /mnt/root
cd /mnt/root
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs -o nosuid,mode=0755 pod dev
for name in null zero full random urandom tty fuse loop-control; do cp -a "/dev/$name" dev/; done
mkdir dev/shm dev/pts
chmod 1777 dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 pod dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr
mount -t tmpfs -o mode=1777 pod tmp
for place in $shared; do
    mkdir -p "./$place"
    mount --rbind "$place" "./$place"
done
mkdir -p "./$state" "./$workspace" "./$runtime"
mount --bind "$volume/state" "./$state"
mount --bind "$volume/jobs" "./$workspace"
mount --bind "$volume/run" "./$runtime"
cp -a "$files/." .
eval "$more"
mount --move . /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . supervisord --configuration=/etc/supervisor/supervisord.conf
"""
# As soperator's worker has it: another root, in which the pod's volumes and much of its own root are mounted.
JAIL = "/mnt/jail"
_JAIL = f"""
mkdir /mnt/jail.upper /mnt/jail.work ".{JAIL}"
mount -t overlay -o lowerdir=/,upperdir=/mnt/jail.upper,workdir=/mnt/jail.work jail ".{JAIL}"
for place in proc sys dev run tmp var/spool/slurmd; do
    mkdir -p "$place" ".{JAIL}/$place"
    mount --rbind "$place" ".{JAIL}/$place"
done
for place in $shared; do
    mkdir -p ".{JAIL}/$place"
    mount --rbind "$place" ".{JAIL}/$place"
done
cp etc/hosts ".{JAIL}/etc/hosts"
echo jail >".{JAIL}/etc/motd"
"""


class PodDaemons(Daemons):
    """slurmctld outside, and a pod for each node, on a bridge of their own."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self._network = f"10.213.{next(number for number in range(1, 255) if host.reserved(f'network.{number}'))}"
        self._bridge = teardown.bridge_of(base)
        self._cables = count(1)
        self._has_auth = any(Path("/usr/lib").glob("*/slurm-wlm/auth_slurm.so"))
        self._state, self._runtime, self._workspace = Path(), Path(), base / "workspace"
        self.has_jail = False

    @property
    def gateway(self) -> str:
        """The host's address that pods reach."""
        return f"{self._network}.254"

    @property
    def plugstack(self) -> Path:
        """The file in which an image has the lines of its plugins."""
        return self._base / "plugstack.conf.d" / "warmstart.conf"

    @property
    def environment(self) -> dict[str, str]:
        """What a Slurm command needs to find this cluster."""
        socket = {"SLURM_SACK_SOCKET": f"{self._base}/sack/sack.socket"} if self._has_auth else {}
        return super().environment | socket

    def start(self, prefix: Path, *, namespace: config.Namespace | None, cpus: int, proctrack: str) -> None:
        """Write the configuration for hooks at `prefix`, and start slurmctld and the pods."""
        assert namespace is None
        # What is mounted there later appears in pods, as on a volume with mountPropagation: HostToContainer.
        for options in (["--bind", str(self._base)], ["--make-shared"]):
            subprocess.run(["/bin/mount", *options, str(self._base)], check=True)
        self._state, self._runtime = Path(Installation(str(prefix)).var), Path(Installation(str(prefix)).runtime)
        for directory in (self._base / "log", self._workspace, self._state, self._runtime):
            directory.mkdir(parents=True)
        for command in (
            f"link add {self._bridge} type bridge",
            f"address add {self.gateway}/24 dev {self._bridge}",
            f"link set {self._bridge} up",
        ):
            subprocess.run(["/usr/sbin/ip", *command.split()], check=True)
        (port,) = config.free_ports(1)
        self._configure(prefix, port, proctrack)
        if not self._has_auth:
            self._start_munged()
        self._start_slurmctld(port)
        for node in config.NODES:
            self._make_volume(node)
            self._make_files(node, f"{self.gateway}:{port}", cpus, prefix)
            self.start_slurmd(node)

    def start_slurmd(self, node: str) -> None:
        """Start a node's pod, with nothing in /run, and wait until its slurmd runs."""
        self._empty(node, "run")
        variables = {
            "host": str(os.getpid()),
            "cable": f"{self._bridge}.{next(self._cables)}",
            "bridge": self._bridge,
            "address": self._address(node),
            "gateway": self.gateway,
            "init": _INIT,
            "node": node,
            "shared": " ".join(map(str, (self._base, _ROOT, _ROOT / ".venv"))),
            "volume": str(self.volume(node)),
            "state": str(self._state),
            "workspace": str(self._workspace),
            "runtime": str(self._runtime),
            "files": str(self._base / "pods" / node),
            "more": _JAIL if self.has_jail else "",
        }
        argv = ["/usr/bin/unshare", "--net", "--", "/bin/sh", "-euc", _CABLE]
        self._slurmds[node] = processes.start(self._base, f"pod.{node}", argv, environment=variables)
        processes.wait_until(f"slurmd of {node}", lambda: self.inside(node, "slurmd") != 0, _START_S)

    def kill_slurmd(self, node: str) -> None:
        """End a pod with all of its processes, as a machine without memory does, or an impatient admin."""
        init = self.init(node)
        super().kill_slurmd(node)  # its process 1 is killed with it, and with that all others
        processes.wait_until(f"the end of the pod {node}", lambda: not os.path.exists(f"/proc/{init}"), _START_S)

    def end(self, node: str) -> None:
        """Tell a pod to end, and wait until it has."""
        os.kill(self.init(node), signal.SIGTERM)
        self._slurmds.pop(node).wait(_END_S)

    def init(self, node: str) -> int:
        """Return the pid of a pod's process 1 outside, 0 if it does not run yet."""
        return next(iter(processes.children(self._slurmds[node].pid)), 0)

    def inside(self, node: str, program: str) -> int:
        """Return the pid of a program that a pod's supervisor runs, 0 if it does not."""
        for pid in processes.children(self.init(node)):
            if f"/{program}".encode() in b"\0".join(processes.arguments(pid)[:4]):
                return pid
        return 0

    def volume(self, node: str) -> Path:
        """Return the directory that stands for a pod's own volume, with `state` and `jobs`, and for its `run`."""
        return self._base / "volumes" / node

    def empty(self, node: str) -> None:
        """Remove what a pod that is gone has left on its volume."""
        self._empty(node, "state", "jobs")

    def _empty(self, node: str, *parts: str) -> None:
        for part in parts:
            shutil.rmtree(self.volume(node) / part)
            (self.volume(node) / part).mkdir()

    def running_hooks(self) -> bool:
        """Whether any slurmd has a child; see `Daemons`."""
        return self._parents.any_child({self.inside(node, "slurmd") for node in self._slurmds} - {0})

    def _start_as(self, account: Account, name: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a daemon for which /run/slurmctld is this cluster's: the host's may be another cluster's."""
        own = f"mkdir -p /run/slurmctld; mount --bind {self._base}/sack /run/slurmctld"
        drop = f"setpriv --reuid={account.uid} --regid={account.gid} --clear-groups"
        words = ["/usr/bin/unshare", "--mount", "/bin/sh", "-euc", f'{own}; exec {drop} "$@"', name]
        return processes.start(self._base, name, [*words, *argv], environment=self.environment)

    def _address(self, node: str) -> str:
        return f"{self._network}.{1 + config.NODES.index(node)}"

    def _make_volume(self, node: str) -> None:
        """Make a node's volume, whose directories are outside where a host's are."""
        places = ("state", self._state, node), ("jobs", self._workspace, ""), ("run", self._runtime, "")
        for part, place, of_node in places:
            (self.volume(node) / part).mkdir(parents=True)
            (place / node).symlink_to(self.volume(node) / part / of_node)

    def _make_files(self, node: str, server: str, cpus: int, prefix: Path) -> None:
        """Make what an image and Kubernetes give a pod: the supervisor's files, hosts, and Slurm's key."""
        root = self._base / "pods" / node
        (root / "etc/supervisor/conf.d").mkdir(parents=True)
        (root / "etc/supervisor/supervisord.conf").write_text(_SUPERVISORD.format(node=node, server=server, cpus=cpus))
        for path in (SLINKY / "timers.conf", *_ROOT.glob("hooks/warmstart/wings/*/supervisor/*.conf")):
            text = path.read_text().replace("/usr/libexec", f"{prefix}/libexec")
            text += "startretries=99\n"  # it is installed later than in an image
            (root / "etc/supervisor/conf.d" / path.name).write_text(text)
        if self.has_jail:
            words = f"{SLINKY}/jail {JAIL} {self._runtime} {self._state} {self._workspace}"
            jail = re.sub("(?m)^command=.*", f"command={words}", (SLINKY / "jail.conf").read_text())
            (root / "etc/supervisor/conf.d/jail.conf").write_text(jail)
        names = "".join(f"{self._address(name)} {name}\n" for name in config.NODES)
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{self.gateway} {socket.gethostname()}\n{names}")
        if self._has_auth:
            (root / "etc/slurm").mkdir()
            shutil.copy2(self._base / "etc/slurm.key", root / "etc/slurm")
        else:
            (root / "run/munge").mkdir(parents=True)
            (root / "run/munge/munge.socket.2").symlink_to(self._base / "munge/socket")

    def _configure(self, prefix: Path, port: int, proctrack: str) -> None:
        """Write slurmctld's directory as the chart does for `values.yaml`: slurm.conf, its scripts, and Slurm's key."""
        values: dict[str, Any] = yaml.safe_load((SLINKY / "values.yaml").read_text())
        etc = self._base / "etc"
        etc.mkdir()
        hooks = []
        for setting in ("prologScripts", "epilogScripts"):
            kind = setting.removesuffix("Scripts")
            for key, script in values[setting].items():
                hooks.append(f"{kind.title()}={kind}-{key}")
                (etc / f"{kind}-{key}").write_text(script.replace("/usr/libexec", f"{prefix}/libexec"))
                (etc / f"{kind}-{key}").chmod(0o755)
        own = "\n".join([_OWN, values["controller"]["extraConf"], *hooks])
        auth = _AUTH if self._has_auth else config.MUNGE
        text = config.slurm_conf(
            self._base, "/var/spool/slurmd", "/run", port, own, address=self.gateway, auth=auth, proctrack=proctrack
        )
        (etc / "slurm.conf").write_text(text)
        self.plugstack.parent.mkdir()
        self.plugstack.touch()
        plugstack = values["configFiles"]["plugstack.conf"]
        assert IMAGES_PLUGSTACK in plugstack
        if self.has_jail:
            plugin = self._base / "chroot.so"
            subprocess.run(["/usr/bin/cc", "-shared", "-fPIC", "-Wall", "-o", plugin, _CHROOT], check=True)
            plugstack = f"required {plugin} {JAIL}\n{plugstack}"
        (etc / "plugstack.conf").write_text(plugstack.replace(IMAGES_PLUGSTACK, str(self.plugstack.parent)))
        (etc / "cgroup.conf").write_text(config.CGROUP_CONF)
        slurm = lookup("slurm", self._base)
        (self._base / "sack").mkdir(mode=0o755)
        for path in (etc / "slurm.key", self._base / "sack"):
            if path.name == "slurm.key":
                path.touch(0o600)
                path.write_bytes(os.urandom(1024))
            os.chown(path, slurm.uid, slurm.gid)


class PodCluster(Cluster):
    """A cluster of pods. `kill_slurmd` kills a pod, and `start_slurmd` starts its successor over the same volume.

    With a `jail` jobs have another root than slurmd, as soperator's have.
    """

    _daemons: PodDaemons

    def __init__(self, *, jail: bool = False) -> None:
        super().__init__(daemons=PodDaemons)

        self.address = self._daemons.gateway
        self._daemons.has_jail = jail

    @property
    def plugstack(self) -> Path:
        """The file with the lines of SPANK plugins in an image; slurmctld's own includes it."""
        return self._daemons.plugstack

    def enter(self, node: str) -> tuple[str, ...]:
        """Return the words before a command that runs in a pod."""
        init = f"--target={self._daemons.init(node)}"
        return ("/usr/bin/nsenter", init, "--mount", "--pid", "--uts", "--ipc", "--net", "--")

    def in_pod(self, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a pod, as root."""
        return subprocess.run(
            [*self.enter(node), *argv], capture_output=True, text=True, check=False, timeout=300,
            env={"SLURM_CONF": "/run/slurm/conf/slurm.conf", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip

    def inside(self, node: str, program: str) -> int:
        """Return the pid of a program that a pod's supervisor runs, 0 if it does not."""
        return self._daemons.inside(node, program)

    def volume(self, node: str) -> Path:
        """Return the directory that stands for a pod's own volume, with `state` and `jobs`."""
        return self._daemons.volume(node)

    def end_pod(self, node: str) -> None:
        """End a pod as Kubernetes does: SIGTERM to its process 1, and time for it."""
        self._daemons.end(node)

    def empty_volume(self, node: str) -> None:
        """Remove what a pod that is gone has left on its volume, as an `emptyDir` goes."""
        self._daemons.empty(node)

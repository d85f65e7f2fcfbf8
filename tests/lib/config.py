"""The cluster's slurm.conf: settings of this test host, and the rest from packaging/slurm/."""

from __future__ import annotations

import random
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.lib import host

NODES = ("n1", "n2", "n3", "n4")
CPUS = 4
_ROOT = Path(__file__).resolve().parents[2]
_RECOMMENDED = [
    _ROOT / "packaging/slurm/warmstart.conf",
    *sorted(_ROOT.glob("hooks/warmstart/wings/*/slurm.conf")),
]

# CPUS is declared, not counted (config_overrides), so that several jobs fit on a node of a small
# host; proctrack/linuxproc and task/none need no cgroups; SlurmUser is not root, as on real sites.
_SLURM_CONF = """\
ClusterName=warmstart
SlurmctldHost={host}({address})
SlurmUser=slurm
SlurmctldPort={port}
{auth}MpiDefault=none
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation={base}/slurmctld
SlurmdSpoolDir={spool}
SlurmctldPidFile={base}/slurmctld/slurmctld.pid
SlurmdPidFile={run}/slurmd.%n.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
KillWait=5
GetEnvTimeout=60
ReturnToService=2
SlurmdTimeout=300
{own}
PartitionName=main Default=YES Nodes=ALL MaxTime=INFINITE State=UP
PartitionName=ci Nodes=ALL MaxTime=INFINITE State=UP
"""
MUNGE = """\
AuthType=auth/munge
AuthInfo=socket={base}/munge/socket
CryptoType=crypto/munge
"""
CGROUP_CONF = "CgroupMountpoint=/sys/fs/cgroup\n"


class Namespace(NamedTuple):
    """The mount namespace that Slurm makes for each job.

    `further` are settings of each node: words of its line in job_container.conf, or, of namespace/linux, lines of its
    `options` in namespace.yaml. In it {base} and {prefix} are replaced.
    """

    plugin: str = "job_container/tmpfs"  # NamespaceType from Slurm 25.11: namespace/tmpfs, namespace/linux
    further: str = ""

    def write(self, etc: Path, base: Path, prefix: Path) -> str:
        """Write the plugin's file. Return the line of slurm.conf."""
        further = self.further.format(base=base, prefix=prefix)
        # Each node has a directory of its own, not below /tmp (fatal to slurmd 22.05).
        if self.plugin == "namespace/linux":
            more = "".join(f"      {line}\n" for line in further.splitlines())
            nodes = (
                f"  - nodes: [{node}]\n    options:\n"
                f"      auto_base_path: true\n      base_path: {base}/containers/{node}\n{more}"
                for node in NODES
            )
            (etc / "namespace.yaml").write_text(f"node_confs:\n{''.join(nodes)}")
        else:
            nodes = (
                f"NodeName={node} AutoBasePath=true BasePath={base}/containers/{node} {further}\n" for node in NODES
            )
            (etc / "job_container.conf").write_text("".join(nodes))
        key = "JobContainerType" if self.plugin.startswith("job_container/") else "NamespaceType"
        return f"{key}={self.plugin}\n"


def release() -> str:
    """Return the release of the installed Slurm, year and month as in 22.05; "" if there is none."""
    program = shutil.which("slurmd", path="/usr/sbin")
    said = subprocess.run([program, "-V"], check=True, capture_output=True, text=True).stdout if program else ""
    return "".join(re.findall(r"\d+\.\d+", said)[:1])


def free_ports(count: int) -> list[int]:
    """Return `count` free loopback ports, reserved among the tests on this host until this process ends.

    They lie below the range that the kernel gives to clients: Slurm's own commands use ports of that range all the
    time, and a restarted slurmd must find its port free.
    """
    found: list[int] = []
    for port in random.sample(range(30000, 32700), 2700):
        if host.reserved(f"port.{port}") and _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports between 30000 and 32700")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def write(
    base: Path, prefix: Path, *, namespace: Namespace | None, cpus: int, proctrack: str
) -> tuple[int, dict[str, int]]:
    """Write etc/slurm.conf, and beside it the file that admins are told to include.

    Returns slurmctld's port and each node's.
    """
    hostname = socket.gethostname()
    controller, *ports = free_ports(1 + len(NODES))
    nodes = "".join(
        f"NodeName={node} NodeHostname={hostname} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}\n"
        for node, port in zip(NODES, ports, strict=True)
    )
    own = f"PlugStackConfig={base}/etc/plugstack.conf\ninclude warmstart.conf\n{nodes}"
    recommended = "".join(path.read_text() for path in _RECOMMENDED).replace("@PREFIX@", str(prefix))
    text = slurm_conf(base, f"{base}/spool/%n", f"{base}/run", controller, own, proctrack=proctrack)
    etc = base / "etc"
    etc.mkdir()
    (etc / "plugstack.conf").touch()
    (etc / "cgroup.conf").write_text(CGROUP_CONF)
    if namespace is not None:
        recommended = recommended.replace("PrologFlags=Alloc,", "PrologFlags=Contain,Alloc,")
        text += namespace.write(etc, base, prefix)
    (etc / "warmstart.conf").write_text(recommended)
    (etc / "slurm.conf").write_text(text)
    return controller, dict(zip(NODES, ports, strict=True))


def slurm_conf(
    base: Path,
    spool: str,
    run: str,
    port: int,
    own: str,
    *,
    address: str = "127.0.0.1",
    auth: str = MUNGE,
    proctrack: str = "linuxproc",
) -> str:
    """Return a slurm.conf for slurmctld at `address` and `port`; slurmds' files are in `spool` and `run`."""
    return _SLURM_CONF.format(
        base=base, host=socket.gethostname(), address=address, port=port, auth=auth.format(base=base), spool=spool,
        run=run, own=own, proctrack=proctrack,
    )  # fmt: skip


def listening(port: int) -> bool:
    """Return whether a TCP socket listens on this port, without connecting (proc(5): state 0A)."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False

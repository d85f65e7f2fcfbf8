"""Start a program that outlives the process that starts it, even if that is a hook of Slurm. Not on the hot path.

slurmd kills a hook's process group when the hook ends, and takes a hook for running while any process holds its output
open (`run_command.c`). A process in the cgroup of a job (slurm.conf(5), PrologFlags=RunInJob) counts against the job's
limits, and one in slurmd's dies with slurmd where the unit kills its group. So the program gets a session and cgroups
of its own, no descriptor of its parent, and init as its parent.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress

from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import close_others, detach

SYSTEMD = "/run/systemd/system"  # exists where systemd is the system manager (sd_booted(3))
SYSTEMCTL = "/usr/bin/systemctl"
SYSTEMCTL_S = 5.0
CGROUP = "warmstart-import"
_SLURM = "slurm"  # in the path of every cgroup of Slurm's: slurmd.service, slurmstepd.scope, /slurm/uid_…
_OOM_SCORE = "/proc/self/oom_score_adj"
_EXPENDABLE = "1000"  # no unit bounds its memory: where that is short, it goes before jobs and slurmd, and starts again
_NOT_STARTED = 127


def start(argv: Sequence[str], *, unit: str = "") -> None:
    """Start a program with nothing of this process but the path of slurm.conf. Does not tell whether it could start.

    Where systemd runs it is started as `unit`, if one is given, and systemd has it.
    """
    if unit and _is_started(unit):
        return
    kept = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
    env = {"LC_ALL": "C.UTF-8", **kept}
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if not os.fork():
            detach()
            close_others({0, 1, 2})
            leave_cgroups()
            _reset()
            os.execve(argv[0], list(argv), env)  # noqa: S606 - no shell: argv is a list, its path absolute
    finally:
        os._exit(_NOT_STARTED)


def _is_started(unit: str) -> bool:
    if not os.path.isdir(SYSTEMD):
        return False
    from warmstart.host import process

    with suppress(WarmstartError):
        argv = [SYSTEMCTL, "start", "--no-block", unit]
        return process.run(argv, deadline=after(SYSTEMCTL_S)).status == 0
    return False


def _reset() -> None:
    """Undo what children inherit: priority, blocked and ignored signals, the working directory, the OOM score."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    os.chdir("/")
    os.umask(0o022)
    with suppress(OSError), open(_OOM_SCORE, "w", encoding="ascii") as file:
        file.write(_EXPENDABLE)


def leave_cgroups(proc: str = "/proc/self") -> list[str]:
    """Move this process out of Slurm's cgroups, where the kernel allows it; return the cgroups that it joined.

    In each hierarchy, of version 1 or 2, it joins `CGROUP` at the top, or the top itself where a new cgroup takes no
    process (a cpuset without processors). A process that is in no cgroup of Slurm's stays where it is.
    """
    joined = []
    with suppress(OSError):
        for mount, path in _hierarchies(proc):
            if _SLURM not in path:
                continue
            for target in (f"{mount}/{CGROUP}", mount):
                with suppress(OSError):
                    os.makedirs(target, 0o755, exist_ok=True)
                    with open(f"{target}/cgroup.procs", "w", encoding="ascii") as file:
                        file.write(str(os.getpid()))
                    joined.append(target)
                    break
    return joined


def _hierarchies(proc: str) -> Iterator[tuple[str, str]]:
    """Yield the mount point of each cgroup hierarchy, and this process's cgroup in it (cgroups(7))."""
    mounts: dict[str, str] = {}
    with open(f"{proc}/mountinfo", encoding="utf-8") as file:
        for line in file:
            fields, _, rest = line.partition(" - ")
            kind, _, options = (*rest.split(), "", "")[:3]
            mount = fields.split()[4]
            if kind == "cgroup2":
                mounts[""] = mount
            elif kind == "cgroup":
                mounts.update(dict.fromkeys(options.split(","), mount))
    with open(f"{proc}/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            mount_point = mounts.get(controllers.split(",")[0])
            if mount_point:
                yield mount_point, path

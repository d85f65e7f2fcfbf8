"""The processes of a cluster: started and recorded here, and ended by that record.

Slurm's daemons leave orphaned processes (a slurmstepd outlives its slurmd, a job's task its slurmstepd). Besides the
recorded pids and their descendants, a process belongs to the cluster if its SLURM_CONF is the cluster's slurm.conf.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from tests.lib.accounts import Account

SETPRIV = "/usr/bin/setpriv"
_POLL_S = 0.1
_LONGEST_S = 60.0  # until killed processes are gone, on a busy machine
_FRESH_S = 1.0


def start(
    base: Path,
    name: str,
    argv: Sequence[str],
    *,
    account: Account | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a foreground daemon as `account` (None: root); its output goes to log/NAME.out.

    It gets a session of its own, so that the terminal's Ctrl-C does not stop it out of order.
    """
    with (base / "log" / f"{name}.out").open("ab") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(environment or {})},
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    with (base / "pids").open("a") as record:
        record.write(f"{process.pid} {_started(process.pid)}\n")
    return process


def run_as(
    account: Account,
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float = 120,
    enter: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command as `account`, in its home, with a login's environment plus `environment`.

    `enter` are the words before a command that runs on a node (`Cluster.enter`). The caller checks the exit status.
    Raises TimeoutExpired after `timeout_s` seconds. setpriv(1) takes the account: with `user=` Python has to copy a
    test process's page tables first, which takes ten milliseconds.
    """
    return subprocess.run(
        [*enter, SETPRIV, f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups", "--", *argv],
        check=False,
        capture_output=True,
        text=True,
        input=stdin or "",
        timeout=timeout_s,
        cwd=account.home,
        env={**account.environment(), **(environment or {})},
    )


def wait_until(what: str, done: Callable[[], bool], deadline_s: float) -> None:
    """Poll `done` until it is true. Raises TimeoutError naming `what` after `deadline_s` seconds."""
    end = time.monotonic() + deadline_s
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {deadline_s:g} s for {what}")
        time.sleep(_POLL_S)


def stop(process: subprocess.Popen[bytes], grace_s: float = 5) -> None:
    """End one process: SIGTERM, and SIGKILL after `grace_s` seconds."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_all(base: Path) -> None:
    """Kill every process of the cluster in `base`, until none remains."""
    _kill(f"processes of {base}", lambda: members(base))


def kill_of_uid(uid: int) -> None:
    """Kill every process of an account that exists for tests only and that no cluster holds.

    A task that left its session and dropped its environment can be found only by its uid.
    """
    _kill(f"processes of uid {uid}", lambda: of_uid(uid))


def of_uid(uid: int) -> set[int]:
    """Return the live processes of an account."""
    return {pid for pid in parents() if _uid(pid) == uid}


def _kill(what: str, members: Callable[[], set[int]]) -> None:
    """Kill `members` until there are none, because a killed process may just have started another."""
    end = time.monotonic() + _LONGEST_S
    while pids := members():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} do not end: {sorted(pids)}")
        for pid in pids:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)  # our own child: leave no zombie
        time.sleep(_POLL_S)


def arguments(pid: int) -> list[bytes]:
    """Return the arguments of a process, [] if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def children(*pids: int) -> set[int]:
    """Return the live children of processes; those of a slurmd are its running hooks."""
    return {child for child, parent in parents().items() if parent in pids}


def members(base: Path) -> set[int]:
    """Return the pids of the cluster's live processes, never the caller or its ancestors."""
    found = parents()
    members = _recorded(base) | {
        pid for pid in found if _variable(pid, "SLURM_CONF") == str(base / "etc" / "slurm.conf")
    }
    grown = True
    while grown:
        children = {pid for pid, parent in found.items() if parent in members} - members
        members |= children
        grown = bool(children)
    pid = os.getpid()
    while pid > 0:
        members.discard(pid)
        pid = found.get(pid, 0)
    return members & found.keys()


class Parents:
    """The parents of all processes, for one who asks often: whose parent is known is not looked at again.

    What was known a second ago is forgotten: by then a pid may be another process's.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._asked = 0.0

    def any_child(self, parents: Collection[int]) -> bool:
        """Return whether one of `parents` has a child, which may be a zombie."""
        before, self._asked = self._asked, time.monotonic()
        known = self._known if self._asked < before + _FRESH_S else {}
        pids = [entry for entry in os.listdir("/proc") if entry.isdigit()]
        self._known = {pid: known.get(pid) or _parent(pid) for pid in pids}
        return any(parent in parents for parent in self._known.values())


def _parent(pid: str) -> int:
    fields = _stat(int(pid))
    return int(fields[1]) if fields else 0


def _recorded(base: Path) -> set[int]:
    """Return recorded pids that still name the process that was started."""
    try:
        lines = (base / "pids").read_text().splitlines()
    except FileNotFoundError:
        return set()
    pairs = (line.split() for line in lines)
    return {int(pid) for pid, started in pairs if _started(int(pid)) == started}


def parents() -> dict[int, int]:
    """Return pid → parent of every process that is not a zombie."""
    found = {}
    for entry in os.listdir("/proc"):
        fields = _stat(int(entry)) if entry.isdigit() else []
        if fields and fields[0] != "Z":
            found[int(entry)] = int(fields[1])
    return found


def _started(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, empty if it is gone."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def _stat(pid: int) -> list[str]:
    """Return /proc/PID/stat from the state on (proc(5): field 3 is first), empty if gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _uid(pid: int) -> int:
    """Return the effective uid of a process, which owns its /proc directory; -1 if it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return -1


def _variable(pid: int, name: str) -> str:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""  # gone, or a host that shows root not everything: no process of ours
    prefix = name.encode() + b"="
    return next((e[len(prefix) :].decode() for e in environment if e.startswith(prefix)), "")

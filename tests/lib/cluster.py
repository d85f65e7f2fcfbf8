"""A real Slurm cluster on this host: munge, slurmctld and four slurmds, up in seconds.

Everything is in one directory below /var/tmp, because jobs may not see hooks and state below /tmp. The output of
Slurm's commands is parsed in the form of Slurm 22.05.
"""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.lib import config, processes, teardown
from tests.lib.accounts import Account, Accounts
from tests.lib.daemons import Daemons

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TERMINAL = frozenset(
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
     "PREEMPTED", "TIMEOUT"]
)  # fmt: skip
_START_S = 120
_ASK_S = 0.5


class JobResult(NamedTuple):
    """What slurmctld says of a job, and what the job wrote."""

    job_id: int
    state: str  # COMPLETED, FAILED, PENDING, …
    reason: str  # "None" where there is none
    exit_code: int
    signal: int
    restarts: int
    nodes: tuple[str, ...]
    output: str  # stdout and stderr of a batch job, empty where it has not written any


class NodeState(NamedTuple):
    """One node as sinfo shows it: `idle`, `drained`, …, and the reason, empty where none is set."""

    state: str
    reason: str


class Cluster:
    """Context manager of a running, idle cluster; it is removed at the end.

    `prefix` is where warmstart is, or will be, installed: by default `base/warmstart`. Slurm looks up the hooks when a
    job starts, so they may be installed into the running cluster. With `namespace` each job has a /tmp of its own. Each
    node says that it has `cpus`. `proctrack` is how Slurm knows a job's processes: "cgroup" knows daemons, too.
    """

    nodes = config.NODES
    address = "127.0.0.1"  # of the host, as the nodes reach it

    def __init__(
        self,
        prefix: Path | None = None,
        *,
        namespace: config.Namespace | None = None,
        cpus: int = config.CPUS,
        proctrack: str = "linuxproc",
        daemons: type[Daemons] = Daemons,
    ) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="warmstart-", dir="/var/tmp"))
        self.base.chmod(0o755)
        self.prefix = prefix or self.base / "warmstart"
        self._namespace = namespace
        self._cpus = cpus
        self._proctrack = proctrack
        self._keep_logs = False
        self._daemons = daemons(self.base)
        self._owner = os.getpid()
        self._watchdog = teardown.watch(self.base)
        self._accounts: Accounts | None = None
        self._stopped = False
        atexit.register(self.stop)

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.keep_logs()
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.keep_logs()
        self.stop()

    def account(self, name: str) -> Account:
        """Return one of the accounts of `tests.lib.accounts`, with its home in this cluster."""
        assert self._accounts is not None, "the cluster is not started"
        return self._accounts[name]

    # --- jobs

    def submit(self, script: str, user: str, *arguments: str, env: Mapping[str, str] | None = None) -> int:
        """Submit a batch script as `user`; returns the job's id.

        `arguments` are sbatch's. The job sees the environment of a login plus `env`. Its output
        goes to slurm-ID.out in the user's home. Raises RuntimeError where sbatch refuses.
        """
        home = self.account(user).home
        done = self.run(
            ["sbatch", "--parsable", f"--output={home}/slurm-%j.out", *arguments],
            user, env=env, stdin=script,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"sbatch ended with {done.returncode}: {done.stderr.strip()}")
        return int(done.stdout.partition(";")[0])

    def run(
        self,
        argv: Sequence[str],
        user: str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout_s: float = 120,
        node: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command (srun, salloc, …) as `user` in its home, on a node or outside; check the status."""
        return processes.run_as(
            self.account(user),
            argv,
            environment={**self.environment, **(env or {})},
            stdin=stdin,
            timeout_s=timeout_s,
            enter=self.enter(node) if node else (),
        )

    def job(self, job_id: int) -> JobResult:
        """Return the job as it is now. Slurm forgets a job five minutes after its end."""
        text = self.admin("scontrol", "show", "job", str(job_id))
        code, _, number = _field(text, r" ExitCode=(\d+:\d+)").partition(":")
        stdout = Path(_field(text, r"^   StdOut=(.+)"))
        nodes = _field(text, r"^   NodeList=(.*)")
        return JobResult(
            job_id=job_id,
            state=_field(text, r"^   JobState=(\S+)"),
            reason=_field(text, r"^   JobState=\S+ Reason=(\S+)"),
            exit_code=int(code),
            signal=int(number),
            restarts=int(_field(text, r" Restarts=(\d+)")),
            nodes=() if nodes in {"", "(null)"} else self._hostnames(nodes),
            output=stdout.read_text() if stdout.is_file() else "",
        )

    def wait(self, job_id: int, deadline_s: float = 60) -> JobResult:
        """Wait until the job has ended and its epilogs, too (a job is COMPLETING until then).

        Raises TimeoutError, naming the job's state, after `deadline_s` seconds.
        """
        return self.wait_for(job_id, _TERMINAL, deadline_s)

    def wait_for(self, job_id: int, states: frozenset[str] | set[str], deadline_s: float = 60) -> JobResult:
        """Wait until the job is in one of `states`; see `wait`."""
        try:
            self._wait_until(f"job {job_id}", lambda: self._state(job_id) in states, deadline_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.job(job_id)}") from None
        return self.job(job_id)

    def cancel(self, job_id: int) -> None:
        """Cancel a job, as root."""
        self.admin("scancel", str(job_id))

    def requeue(self, job_id: int) -> None:
        """Requeue a running job, as root; it may start again two minutes later (Slurm's rule)."""
        self.admin("scontrol", "requeue", str(job_id))

    def cancel_all(self) -> None:
        """Cancel all jobs."""
        for partition in ("main", "ci"):
            self.admin("scancel", f"--partition={partition}")

    def wait_idle(self, deadline_s: float = 60) -> None:
        """Wait until no job runs or completes and no slurmd runs a hook. Pending jobs do not count."""
        self._wait_until("an idle cluster", self._idle, deadline_s)

    def wait_empty(self, deadline_s: float = 60) -> None:
        """Wait until no job is left, pending ones included, and no slurmd runs a hook."""

        def is_empty() -> bool:
            time.sleep(_ASK_S)  # the jobs need the processors that asking takes
            return not self.admin("squeue", "--noheader").strip() and not self._daemons.running_hooks()

        processes.wait_until("an empty queue", is_empty, deadline_s)

    # --- nodes

    def node_states(self) -> dict[str, NodeState]:
        """Return each node's state and reason."""
        rows = self.admin("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N|%T|%E")
        states = {}
        for row in rows.splitlines():
            node, state, reason = row.split("|", 2)
            states[node] = NodeState(state, "" if reason == "none" else reason)
        return states

    def drained(self, states: Mapping[str, NodeState] | None = None) -> list[str]:
        """Return the nodes that take no jobs: drained, draining or down. `states` are those of now by default."""
        states = states or self.node_states()
        return [n for n in states if re.match("drain|down|fail", states[n].state)]

    def resume(self, node: str) -> None:
        """Return a drained node to service, unless it has returned by itself, and wait until it is there."""
        try:
            self.admin("scontrol", "update", f"nodename={node}", "state=resume")
        except RuntimeError:  # Slurm resumes no node that is there
            if node in self.drained():
                raise
        processes.wait_until(f"{node} to resume", lambda: node not in self.drained(), _START_S)

    def slurmd_log(self, node: str) -> str:
        """Return what the node's slurmd has logged so far."""
        return (self.base / "log" / f"slurmd.{node}.log").read_text()

    def kill_slurmd(self, node: str) -> None:
        """Kill a node's slurmd with SIGKILL, as a crash would. The node's hooks and jobs go on."""
        self._daemons.kill_slurmd(node)

    def start_slurmd(self, node: str) -> None:
        """Start a node's slurmd and wait until it listens."""
        self._daemons.start_slurmd(node)

    def enter(self, node: str) -> Sequence[str]:
        """Return the words before a command that runs where a node's slurmd does."""
        return self._daemons.enter(node)

    def move_node(self, node: str, enter: Sequence[str] = ()) -> None:
        """Restart a node's slurmd behind the words `enter`, such as nsenter's, or in the node's room."""
        self._daemons.moved[node] = enter
        self._daemons.kill_slurmd(node)
        self._daemons.start_slurmd(node)

    def restart_slurmctld(self) -> None:
        """Restart slurmctld, which reads slurm.conf again; PrologSlurmctld is taken from it only then (22.05)."""
        self._daemons.restart_slurmctld()
        processes.wait_until("an answer of slurmctld", self._answers, _START_S)

    def reread(self) -> None:
        """Restart slurmctld and all slurmds, which read their configuration again."""
        self.restart_slurmctld()
        for node in self.nodes:
            self.kill_slurmd(node)
            self.start_slurmd(node)

    def daemons(self) -> dict[str, int]:
        """Return the pids of `slurmctld` and of each `slurmd NODE`."""
        return self._daemons.pids()

    # --- the host

    @property
    def environment(self) -> dict[str, str]:
        """What a Slurm command needs to find this cluster."""
        return self._daemons.environment

    def admin(self, *argv: str) -> str:
        """Run a Slurm command as root and return its output. Raises RuntimeError."""
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=60,
            env={"PATH": "/usr/bin:/bin", **self.environment},
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    python = Path(sys.executable)  # which job users can run, by tools/reachable

    @property
    def plugstack(self) -> Path:
        """The file with the lines of SPANK plugins, which may be written at any time."""
        return self.base / "etc" / "plugstack.conf"

    def keep_logs(self) -> None:
        """Keep the daemons' logs when the cluster is removed, and print their path on stderr."""
        self._keep_logs = True

    def stop(self) -> None:
        """Take everything down. Does nothing on a second call, or in a forked child."""
        if self._stopped or os.getpid() != self._owner:
            return
        self._stopped = True
        atexit.unregister(self.stop)
        try:
            self._end_jobs()
            if self._keep_logs:
                kept = tempfile.mkdtemp(prefix="warmstart-logs-", dir="/var/tmp")
                subprocess.run(["/bin/cp", "-a", f"{self.base}/log/.", kept], check=False)
                sys.stderr.write(f"\nlogs of the cluster are kept in {kept}\n")
        finally:
            teardown.tear_down(self.base)
            self._daemons.reap()
            if self._accounts is not None:
                self._accounts.close()
            teardown.stop_watching(self._watchdog)

    # --- inside

    def _start(self) -> None:
        self._accounts = Accounts(self.base / "home")
        self._daemons.start(self.prefix, namespace=self._namespace, cpus=self._cpus, proctrack=self._proctrack)
        idle = ["idle"] * len(self.nodes)
        processes.wait_until(
            "four idle nodes", lambda: [s.state for s in self.node_states().values()] == idle, _START_S
        )

    def _wait_until(self, what: str, done: Callable[[], bool], deadline_s: float) -> None:
        """Ask slurmctld with `done` until it is true, but only where that may have changed.

        That is when no hook runs and one did, or slurmctld's log has grown; and half a second after the last question.
        Each one starts a process: ten in a second take a quarter of a processor from the jobs.
        """
        log = self.base / "log" / "slurmctld.log"
        seen, asked = 0, 0.0

        def is_done() -> bool:
            nonlocal seen, asked
            late = time.monotonic() > asked + _ASK_S
            if self._daemons.running_hooks():
                seen = 0
            elif seen != (size := log.stat().st_size):
                seen, late = size, True
            if not late:
                return False
            asked = time.monotonic()
            return done()

        processes.wait_until(what, is_done, deadline_s)

    def _state(self, job_id: int) -> str:
        return _field(self.admin("scontrol", "show", "job", str(job_id)), r"^   JobState=(\S+)")

    def _idle(self) -> bool:
        jobs = self.admin("squeue", "--noheader", "--format=%i", "--states=CF,R,CG,S")
        return not jobs.strip() and not self._daemons.running_hooks()

    def _answers(self) -> bool:
        try:
            self.node_states()
        except RuntimeError:
            return False
        return True

    def _end_jobs(self) -> None:
        """Let Slurm kill what still runs: it finds a job's processes best."""
        if not self._daemons.started:
            return
        try:
            self.cancel_all()
            self.wait_idle(10)
        except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
            self.keep_logs()
            sys.stderr.write(f"\njobs did not end by themselves: {error}\n")

    def _hostnames(self, expression: str) -> tuple[str, ...]:
        if expression in self.nodes:
            return (expression,)
        return tuple(self.admin("scontrol", "show", "hostnames", expression).split())


def _field(text: str, pattern: str) -> str:
    """Return what `pattern` matches in scontrol's output, "" if nothing."""
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""

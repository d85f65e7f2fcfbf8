"""Run external programs. No other module does. Not on the hot path.

No shell, no PATH search, no inherited environment, bounded output, always a deadline. Children stay in the hook's
process group, which Slurm kills if a hook runs too long (slurm.conf(5), PrologEpilogTimeout).
"""

from __future__ import annotations

import errno
import os

from warmstart.errors import NodeError, ResourceError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity, ProgramNotStarted
from warmstart.lean import TYPE_CHECKING, Callable, Mapping, NamedTuple, Sequence, suppress

if TYPE_CHECKING:
    import subprocess
    from typing import IO

MOST_OUTPUT = 1 << 20  # bytes
_WATCH_S = 1.0
REAP_S = 5.0  # how long to wait for a killed program to end
UNSHARE = "/usr/bin/unshare"
NSENTER = "/usr/bin/nsenter"
SETPRIV = "/usr/bin/setpriv"
IONICE = "/usr/bin/ionice"
_IONICE_S = 5.0


class ProgramMissing(NodeError):
    """A program that warmstart needs is not installed, or cannot be executed."""

    code = "program-missing"
    template = "cannot run {program}: {problem}"
    hint = "install the packages that docs/operations/install.md names, or repair the node"


class ProgramTooSlow(ResourceError):
    """A program did not end before its deadline and was killed."""

    code = "program-too-slow"
    template = "{program} was killed at its deadline"
    hint = "check whether the node or its disk is overloaded; raise the budget in the policy if this is usual"


class CompletedProgram(NamedTuple):
    """Exit status and output of a program."""

    status: int  # negative if a signal ended it: -SIGNAL
    stdout: bytes
    stderr: bytes

    def complaint(self) -> str:
        """Return the last line of stderr, made printable, for an error message."""
        lines = self.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        return "".join(c if c.isprintable() else "?" for c in lines[-1])[:500]


def be_idle() -> None:
    """Give this process a low priority and, if the kernel allows it, the idle I/O class."""
    os.nice(10)
    with suppress(WarmstartError):
        run([IONICE, "-c", "3", "-p", str(os.getpid())], deadline=after(_IONICE_S))


def set_idle(idle: bool) -> None:
    """Give this process's group, with the programs that it has started, the priority of `be_idle`, or the usual one."""
    os.setpriority(os.PRIO_PGRP, 0, 10 if idle else 0)
    with suppress(WarmstartError):
        run([IONICE, "-c", "3" if idle else "0", "-P", str(os.getpgrp())], deadline=after(_IONICE_S))


def run(
    argv: Sequence[str],
    *,
    deadline: Deadline,
    identity: Identity | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str = "/",
    keep: Sequence[int] = (),
    watch: Callable[[], None] | None = None,
    stdin: int | None = None,
) -> CompletedProgram:
    """Run a program to its end, as `identity` (default: our own). Each stream is cut after about `MOST_OUTPUT` bytes.

    It reads the descriptor `stdin`, without one nothing. `watch` is called every second; an exception from it kills the
    program. If we are not root, a watched program gets a session of its own, whose process group is killed at the end,
    since no namespace ends the program's children.
    Raises `ProgramMissing`, `ProgramNotStarted`, and `ProgramTooSlow` at the deadline.
    """
    import signal
    import subprocess  # slow to import, and most epilogs start no program

    session = watch is not None and os.geteuid() != 0
    own = identity is None or (identity.uid == os.geteuid() and os.geteuid() != 0)
    try:
        # S603: argv is a list, the program an absolute path, the environment our own
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env or {}) | {"LC_ALL": "C.UTF-8"},
            cwd=cwd,
            pass_fds=tuple(keep),
            user=None if own or identity is None else identity.uid,
            group=None if own or identity is None else identity.gid,
            extra_groups=None if own else [],
            umask=0o022,
            start_new_session=session,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise ProgramMissing(program=argv[0], problem=error.strerror) from error
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            raise
        raise ProgramNotStarted(program=argv[0], problem=error.strerror) from error
    try:
        stdout, stderr = _collect(process, deadline, watch)
        return CompletedProgram(process.wait(max(deadline.left(), 1.0)), stdout, stderr)
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        raise ProgramTooSlow(program=argv[0]) from error
    finally:
        process.kill()
        if session:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        _reap(process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait `REAP_S` for a killed program to end. One that hangs in the kernel on a dead file system is left behind."""
    from subprocess import TimeoutExpired

    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    with suppress(TimeoutExpired):
        process.wait(REAP_S)


def run_alone(
    argv: Sequence[str],
    *,
    deadline: Deadline,
    identity: Identity,
    env: Mapping[str, str],
    cwd: str,
    network: bool = False,
    mounts: int | None = None,
    keep: Sequence[int] = (),
    capabilities: Sequence[str] = (),
    watch: Callable[[], None] | None = None,
    real_uid: int | None = None,
) -> CompletedProgram:
    """Run a program in its own PID, mount and IPC namespaces, which end with it. Needs root; raises what `run` raises.

    No process that it started survives, so none has its files open for writing (docs/threats.md, row 11). /bin/sh
    stays as the first process of the PID namespace, as root, because a change of uid would clear the death signal that
    `unshare --kill-child` sets.

    `network` is whether it has the node's network; otherwise it has none. `mounts` is the descriptor of a mount
    namespace to start from (`host.namespaces`); without one it is ours.
    `capabilities` (names as in setpriv(1)) are those that the program may gain from the file capabilities of what it
    executes; without any, it runs with no_new_privs. `real_uid` is the program's real uid, by default `identity`'s.
    With another's, no process of `identity` can trace the program (`identity.become`).
    """
    gains = () if capabilities else ("--no-new-privs",)
    bounds = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    return run(
        [
            # If only the hook is killed, its child dies, too. The death signal survives the exec: the uid stays root.
            SETPRIV, "--pdeathsig=KILL", "--",
            *(() if mounts is None else (NSENTER, f"--mount=/proc/self/fd/{mounts}", "--")),
            UNSHARE, "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--ipc",
            *(() if network else ("--net",)),
            # A change of the mount namespace loses the working directory.
            "--", "/bin/sh", "-c", 'cd "$0" || exit; "$@"; exit $?', cwd,
            SETPRIV, f"--ruid={identity.uid if real_uid is None else real_uid}", f"--euid={identity.uid}",
            f"--regid={identity.gid}", "--clear-groups",
            *gains, f"--bounding-set={bounds}", "--inh-caps=-all", "--", *argv,
        ],
        deadline=deadline,
        env=env,
        keep=keep if mounts is None else [*keep, mounts],
        watch=watch,
    )  # fmt: skip


def _collect(
    process: subprocess.Popen[bytes], deadline: Deadline, watch: Callable[[], None] | None
) -> tuple[bytes, bytes]:
    import selectors

    assert process.stdout is not None
    assert process.stderr is not None
    streams: tuple[IO[bytes], IO[bytes]] = (process.stdout, process.stderr)
    collected = {stream.fileno(): bytearray() for stream in streams}
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.fileno(), selectors.EVENT_READ)
        while selector.get_map():
            if deadline.expired():
                raise TimeoutError
            if watch is not None:
                watch()
            for key, _ in selector.select(deadline.left() if watch is None else min(deadline.left(), _WATCH_S)):
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fd)
                elif len(collected[key.fd]) < MOST_OUTPUT:
                    collected[key.fd] += chunk
    return bytes(collected[streams[0].fileno()]), bytes(collected[streams[1].fileno()])

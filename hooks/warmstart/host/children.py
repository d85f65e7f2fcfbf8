"""Every program that warmstart starts, starts here. Never on a warm hook's path.

No shell, no PATH, an environment that is given and not inherited, bounded output, a deadline. The
children stay in the hook's process group: when Slurm kills a hook that ran too long, it kills that
group (reference: slurm.conf(5), PrologEpilogTimeout).
"""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

from warmstart.errors import NodeError, ResourceError
from warmstart.host.deadline import Deadline
from warmstart.host.worker import Identity

MOST_OUTPUT = 1 << 20
UNSHARE = "/usr/bin/unshare"
SETPRIV = "/usr/bin/setpriv"


class ProgramMissing(NodeError):
    """A program that the importer or the harvest needs is not installed."""

    code = "program-missing"
    template = "{program}: {problem}"
    hint = "install the packages that the README names, or repair the node"


class ProgramTooSlow(ResourceError):
    """A program did not end before its deadline and was killed."""

    code = "program-too-slow"
    template = "{program} was killed at its deadline"
    hint = "is the node or its disk overloaded? raise the budget in the policy if this is usual"


class Ended(NamedTuple):
    """How a program ended; output is cut at `MOST_OUTPUT` bytes each."""

    status: int  # negative: the signal that ended it
    stdout: bytes
    stderr: bytes

    def complaint(self) -> str:
        """Return the last line of its stderr, printable, for an error's reason."""
        lines = self.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        return "".join(c if c.isprintable() else "?" for c in lines[-1])[:500]


def run(
    argv: Sequence[str],
    *,
    deadline: Deadline,
    identity: Identity | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str = "/",
    keep: Sequence[int] = (),
) -> Ended:
    """Run one program to its end, as `identity` (default: whoever we are)."""
    own = identity is None or (identity.uid == os.geteuid() and os.geteuid() != 0)
    try:
        # S603: argv is a list, the program an absolute path, the environment ours
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env or {}) | {"LC_ALL": "C.UTF-8"},
            cwd=cwd,
            pass_fds=tuple(keep),
            user=None if own or identity is None else identity.uid,
            group=None if own or identity is None else identity.gid,
            extra_groups=None if own else [],
            umask=0o022,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise ProgramMissing(program=argv[0], problem=error.strerror) from error
    with process:
        try:
            stdout, stderr = _collect(process, deadline)
            return Ended(process.wait(max(deadline.left(), 1.0)), stdout, stderr)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            raise ProgramTooSlow(program=argv[0]) from error
        finally:
            process.kill()


def run_alone(
    argv: Sequence[str],
    *,
    deadline: Deadline,
    identity: Identity,
    env: Mapping[str, str],
    cwd: str,
    network: bool,
    keep: Sequence[int] = (),
    capabilities: Sequence[str] = (),
) -> Ended:
    """Run a program in process, mount and IPC namespaces of its own, which die with it.

    Nothing that it started survives, so no descriptor of its files is left open for writing
    (threats, row 11). /bin/sh stays as the namespace's first process, as root: the death signal that
    `unshare --kill-child` gives it would be cleared by a change of uid.

    `capabilities` (setpriv's names) are those that an executed file may bring along, by its own file
    capabilities; without any, nothing gains a right by being executed.
    """
    gains = () if capabilities else ("--no-new-privs",)
    bounds = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    return run(
        [
            # A hook that is killed alone takes its child with it; the signal survives the exec, root stays root.
            *(SETPRIV, "--pdeathsig=KILL", "--"),
            *(UNSHARE, "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--ipc"),
            *(() if network else ("--net",)),
            *("--", "/bin/sh", "-c", '"$0" "$@"; exit $?'),
            *(SETPRIV, f"--reuid={identity.uid}", f"--regid={identity.gid}", "--clear-groups"),
            *(*gains, f"--bounding-set={bounds}", "--inh-caps=-all", "--", *argv),
        ],
        deadline=deadline,
        env=env,
        cwd=cwd,
        keep=keep,
    )


def _collect(process: subprocess.Popen[bytes], deadline: Deadline) -> tuple[bytes, bytes]:
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
            for key, _ in selector.select(deadline.left()):
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fd)
                elif len(collected[key.fd]) < MOST_OUTPUT:
                    collected[key.fd] += chunk
    return bytes(collected[streams[0].fileno()]), bytes(collected[streams[1].fileno()])

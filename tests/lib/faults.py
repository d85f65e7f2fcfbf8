"""Faults in a hook that runs in a forked child: an error at one call site, or a stop before one of its calls.

A call site is a function of `os` and its like, where the package calls it, whatever process of the hook does, and the
part of the site that it is about. The children that a hook forks have the same faults; programs that it starts have
none, but the start can fail, and so can the program.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import warmstart
from warmstart.host import client, linux, space
from warmstart.host.deadline import after

HOOKS = str(Path(warmstart.__file__).parent) + "/"
# Where a call site is named after: the last frame, and the last one that is not a helper that everybody shares.
HELPERS = ("host/files.py", "host/untrusted.py", "host/worker.py", "host/linux.py", "host/process.py", "host/space.py")
ELSEWHERE = "kernel"  # pipes, /proc, /dev, what is only in memory
STORE = "store"
EXIT = "exit 1"  # a program that fails
ENDING_S = 10.0  # for processes that were killed
LONGEST = 90.0  # seconds; longer than any budget of the policy that sweeps use

# What each kind of call may fail with on a disk, by its man page, and what a network file system may add. Errors within
# one pair of brackets are the same to the code: a call site has one of them.
_BROKEN, _FULL = ("EIO", "EROFS"), ("ENOSPC", "EDQUOT")
_LOOK = (("EIO",),)
_CHANGE = (_BROKEN, _FULL)
_KINDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "open": (*_LOOK, ("EMFILE",)),
    "create": (*_CHANGE, ("EMFILE",)),
    "name": _CHANGE,
    "remove": (_BROKEN,),
    "data": (*_LOOK, _FULL),
    "read": _LOOK,
    "look": _LOOK,
    "inode": (_BROKEN,),
    "acl": (*_CHANGE, ("ENOTSUP",)),
    "lock": (("ENOLCK",),),
    "descriptor": (("EMFILE",),),
    "process": (("EAGAIN", "ENOMEM"),),
    "program": (("EAGAIN", "EMFILE"), (EXIT,)),
    "mount": (("EIO", "ENOMEM"), ("EPERM",)),
    "device": (("EIO",), ("EBUSY",)),
    "question": (("EIO",),),
}
_OF_OS = {
    "mkdir": "name", "mknod": "name", "link": "name", "symlink": "name", "rename": "name",
    "unlink": "remove", "rmdir": "remove",
    "write": "data", "pwrite": "data", "ftruncate": "data", "fsync": "data", "fdatasync": "data",
    "read": "read", "pread": "read",
    "stat": "look", "lstat": "look", "fstat": "look", "listdir": "look", "scandir": "look", "readlink": "look",
    "statvfs": "look", "fstatvfs": "look",
    "chmod": "inode", "fchmod": "inode", "chown": "inode", "fchown": "inode", "utime": "inode",
    "setxattr": "acl",
    "pipe": "descriptor", "memfd_create": "descriptor", "dup": "descriptor",
    "fork": "process", "posix_spawn": "process",
}  # fmt: skip
# Every function of `linux` that calls the kernel to change a mount, and fails if that does.
_OF_LINUX = (
    "mount", "clone", "map_ids", "restrict", "attach", "attach_on", "unmount_idle", "unmount_here", "detach_path",
    "user_namespace",
)  # fmt: skip
_OF_LIBC = {"fallocate": space, "syncfs": client}  # the only function of the C library that the module calls
_QUESTIONS = frozenset({0x4C05, 0xB703})  # LOOP_GET_STATUS64, one for each loop device of the host; NS_GET_NSTYPE
_IN_MEMORY = frozenset({"descriptor", "process", "program", "mount", "device", "question"})  # about no file of the site
CHANGES = frozenset({"create", "name", "remove", "data", "inode", "acl", "process", "program", "mount", "device"})


class CallSite(NamedTuple):
    """One place in the package that calls the system."""

    call: str  # the function
    kind: str  # of call: a key of the table of errors
    where: str  # module, function and line; then those of the caller, if it is a shared helper
    domain: str  # the part of the site that the call is about

    def errors(self) -> tuple[str, ...]:
        """Return the errors that the call may have there, one of those that are alike: which one goes by the place."""
        kinds = _KINDS[self.kind]
        if self.kind not in _IN_MEMORY and self.domain == ELSEWHERE:
            kinds = (("EMFILE",),) if self.kind in {"open", "create"} else ()
        elif self.kind not in _IN_MEMORY and self.domain == STORE:
            kinds = ((*kinds[0], "ESTALE"), *kinds[1:])
        turn = zlib.crc32(self.where.encode())
        return tuple(alike[turn % len(alike)] for alike in kinds)


class Fault(NamedTuple):
    """An error that a call site has from now on."""

    site: CallSite
    error: str  # a name of `errno`, or `EXIT`


class Done(NamedTuple):
    """What became of a hook."""

    status: int | None  # None: it was killed
    stderr: str
    sites: list[CallSite]  # that it came by, in this order, each once
    changes: list[int]  # each call that changes something, in this order: a hash of its place
    hits: int  # calls that failed by the fault
    stopped_at: CallSite | None  # where it was killed


class _Shared:
    """Memory that all processes of a hook share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1 << 22)
        self._lock = get_context("fork").Lock()  # it needs no descriptor, which a child might close

    @contextmanager
    def _turn(self) -> Iterator[None]:
        held = self._lock.acquire(timeout=1)  # a process that was killed may have had it
        try:
            yield
        finally:
            if held:
                self._lock.release()

    def counter(self, slot: int) -> int:
        return int.from_bytes(self._memory[slot * 8 : slot * 8 + 8], "little")

    def count(self, slot: int, number: int = 1) -> int:
        with self._turn():
            return self._add(slot, number)

    def _add(self, slot: int, number: int) -> int:
        value = self.counter(slot) + number
        self._memory[slot * 8 : slot * 8 + 8] = value.to_bytes(8, "little")
        return value

    def append(self, line: bytes) -> None:
        with self._turn():
            end = self._add(0, len(line) + 1)
            self._memory[64 + end - len(line) - 1 : 64 + end] = line + b"\n"

    def lines(self) -> list[bytes]:
        return self._memory[64 : 64 + self.counter(0)].splitlines()


_CALLS, _HITS, _STOPPED = 1, 2, 3
_STOP = b"!"  # how the line of the site begins at which a process stopped
_CHANGE_LINE = b"+"  # how the line of a change begins


class Faults:
    """The faults of one hook. `domains` maps a part of the site to its path."""

    def __init__(self, domains: Mapping[str, str], fault: Fault | None = None, stop_at: int = 0) -> None:
        """`stop_at`: the number of the call at which the process stops, of those that change something; 0: none."""
        self._domains = sorted(domains.items(), key=lambda item: -len(item[1]))
        self._fault = fault
        self._stop_at = stop_at
        self._shared = _Shared()
        self._seen: set[CallSite] = set()
        self._real_readlink, self._real_getpid = os.readlink, os.getpid

    def run(self, act: Callable[[], int], environment: Mapping[str, str], later: float = 0.0) -> Done:
        """Run a hook in a child with these faults, `later` by so many seconds; kill it when it has stopped."""
        with tempfile.TemporaryFile() as stderr:
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    os.setsid()
                    os.dup2(stderr.fileno(), 2)
                    sys.stderr = os.fdopen(2, "w", closefd=False)  # pytest has replaced it by a file of its own
                    null = os.open("/dev/null", os.O_RDWR)
                    os.dup2(null, 0)
                    os.dup2(null, 1)
                    os.environ.clear()
                    os.environ.update(environment)
                    now = time.time
                    time.time = lambda: now() + later
                    self._install()
                    status = act()
                except SystemExit as ended:
                    status = ended.code if isinstance(ended.code, int) else 1
                except BaseException:  # noqa: BLE001 - what the interpreter does with it
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            status_word = self._wait(pid)
            stderr.seek(0)
            text = stderr.read().decode("utf-8", "replace")
        lines = self._shared.lines()
        sites = [CallSite(*json.loads(line)) for line in lines if line.startswith(b"[")]
        changes = sorted([int(word) for word in line[1:].split()] for line in lines if line.startswith(_CHANGE_LINE))
        stops = [CallSite(*json.loads(line[1:])) for line in lines if line.startswith(_STOP)]
        return Done(
            os.waitstatus_to_exitcode(status_word) if os.WIFEXITED(status_word) else None,
            text,
            list(dict.fromkeys(sites)),
            [place for _, place in changes],
            self._shared.counter(_HITS),
            stops[0] if stops else None,
        )

    def _wait(self, pid: int) -> int:
        until, ended = after(LONGEST), os.pidfd_open(pid)
        poll = select.poll()  # this process may have too many descriptors for select(2)
        poll.register(ended, select.POLLIN)
        try:
            while not poll.poll(2 if self._stop_at else 1000):
                if stopped := self._shared.counter(_STOPPED):
                    # The hook first: nothing of it may notice that its child died.
                    for victim in dict.fromkeys((pid, stopped)):
                        with suppress(ProcessLookupError):
                            os.kill(victim, signal.SIGKILL)
                    break
                if until.expired():
                    os.killpg(pid, signal.SIGKILL)
                    raise AssertionError(f"it did not end within {LONGEST} s")
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            # Its children have the locks that it had, until they have ended, too.
            ending = after(ENDING_S)
            while _any_lives(pid) and not ending.expired():
                time.sleep(0.002)
            return status
        finally:
            os.close(ended)

    def _install(self) -> None:
        for name, kind in _OF_OS.items():
            setattr(os, name, self._faulty(name, kind, getattr(os, name)))
        os.open = self._faulty("open", "", os.open)
        fcntl.flock = self._faulty("flock", "lock", fcntl.flock)
        fcntl.ioctl = self._faulty("ioctl", "device", fcntl.ioctl)
        for name in _OF_LINUX:
            setattr(linux, name, self._faulty(name, "mount", getattr(linux, name)))
        for name, module in _OF_LIBC.items():
            vars(module)["libc"] = self._faulty(name, "data", vars(module)["libc"])
        socket.socket = self._faulty("socket", "descriptor", socket.socket)  # type: ignore[misc]
        subprocess.Popen = self._faulty("Popen", "program", subprocess.Popen)  # type: ignore[misc]

    def _faulty(self, name: str, kind: str, real: Callable[..., Any]) -> Any:  # noqa: ANN401 - a function of a module
        def call(*args: Any, **kw: Any) -> Any:  # noqa: ANN401
            site = self._site(name, kind, args, kw)
            if site is None:
                return real(*args, **kw)
            if site not in self._seen:
                self._seen.add(site)
                self._shared.append(json.dumps(site).encode())
            if site.kind in CHANGES and (site.domain != ELSEWHERE or site.kind in _IN_MEMORY):
                self._changing(site)
            if self._fault is not None and self._fault.site == site:
                self._shared.count(_HITS)
                if self._fault.error == EXIT:
                    args = (["/bin/sh", "-c", "echo it failed >&2; exit 1"], *args[1:])
                    return real(*args, **{key: value for key, value in kw.items() if key != "args"})
                number = getattr(errno, self._fault.error)
                raise OSError(number, os.strerror(number))
            return real(*args, **kw)

        call.__name__ = name
        return call

    def _changing(self, site: CallSite) -> None:
        number = self._shared.count(_CALLS)
        self._shared.append(b"%b%d %d" % (_CHANGE_LINE, number, zlib.crc32(str(site).encode())))
        if number == self._stop_at and not self._shared.counter(_STOPPED):
            self._shared.append(_STOP + json.dumps(site).encode())
            self._shared.count(_STOPPED, self._real_getpid())
            while True:
                time.sleep(60)

    def _site(self, name: str, kind: str, args: tuple[Any, ...], kw: dict[str, Any]) -> CallSite | None:
        frames = _frames()
        where = next(frames, None)
        if where is None:
            return None
        if name == "open":
            kind = "create" if args[1] & os.O_CREAT else "open"
        elif name == "ioctl" and args[1] in _QUESTIONS:
            kind = "question"
        elif name == "write" and args[0] in {1, 2}:
            return None
        if where.partition(":")[0] in HELPERS:
            where += next((f" < {frame}" for frame in frames if frame.partition(":")[0] not in HELPERS), "")
        return CallSite(name, kind, where, ELSEWHERE if kind in _IN_MEMORY else self._domain(name, args, kw))

    def _domain(self, name: str, args: tuple[Any, ...], kw: dict[str, Any]) -> str:
        path, base = args[0] if args else kw.get("path", "."), kw.get("dir_fd")
        if name in _OF_LIBC:
            path = args[1]
        elif name in {"link", "rename", "symlink"}:
            path, base = args[1], kw.get("dst_dir_fd", kw.get("dir_fd"))
        try:
            if hasattr(path, "fileno"):
                path = path.fileno()
            if isinstance(path, int):
                path = self._real_readlink(f"/proc/self/fd/{path}")
                if not path.startswith("/"):  # "pipe:[7]" and the like
                    return ELSEWHERE
            elif base is not None:
                path = f"{self._real_readlink(f'/proc/self/fd/{base}')}/{os.fsdecode(path)}"
            path = os.path.normpath(os.path.join(os.getcwd(), os.fsdecode(path)))
        except OSError:
            return ELSEWHERE
        return next((part for part, top in self._domains if path == top or path.startswith(f"{top}/")), ELSEWHERE)


def dies(act: Callable[[], object], call: int, where: Path) -> bool:
    """Run `act` in a child that is killed before its n-th change below a directory; return whether it got that far."""

    def done() -> int:
        act()
        return 0

    ended = Faults({"here": str(where)}, stop_at=call).run(done, dict(os.environ))
    assert ended.status in {0, None}, ended.stderr
    return ended.status is None


def _any_lives(group: int) -> bool:
    """Say whether a process of the group has not ended; one that nobody has waited for yet has."""
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, of_group = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                return True
    return False


def _frames() -> Iterator[str]:
    """Yield the frames of the package, the innermost first."""
    frame = sys._getframe(3)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(HOOKS):
            yield f"{code.co_filename.removeprefix(HOOKS)}:{code.co_name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]

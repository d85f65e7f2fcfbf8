"""`step-images`: the node's socket at which a step asks for an image that no prolog knew. Runs as root.

systemd starts it (packaging/systemd) when a step first asks, and it ends when nobody has asked for a while. Elsewhere
the site's init starts it, and it makes the socket itself. pyxis's importer asks (`images.user.asking`), so do all that
users like to connect: everybody may.

This process only counts and starts: for each connection one child, `step-images answer`, which reads one line, finds
out whose step that is, and waits for the image (`entry.step_answer`). A user has at most `MOST_PER_USER` of them, the
node `MOST`, and each counts for at least `LEAST_S`, however soon it ends: so a flood takes little time of the node's,
and none of other users' places. Who finds none is told to ask again. When the step goes away, its child is ended.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import NamedTuple, NoReturn

from warmstart.host.files import opened_trusted
from warmstart.host.identity import close_others
from warmstart.images.user.asking import BUSY, Answer, peer
from warmstart.paths import Installation

MOST = 32
MOST_PER_USER = 4
LEAST_S = 2.0
IDLE_S = 300.0
TICK_S = 1.0
PAUSE_S = 0.01
BACKLOG = 4096  # the kernel keeps at most net.core.somaxconn
FIRST_FD = 3  # the first socket that systemd passes (sd_listen_fds(3))
WRONG_USAGE, NOT_STARTED, NOT_ROOT = 2, 127, 1


def main(prefix: str, arguments: list[str]) -> int:
    """Serve the socket, or answer the connection on descriptor 0. Return the exit status."""
    match arguments:
        case []:
            return serve(Installation(prefix))
        case ["answer"]:
            from warmstart.entry import step_answer

            return step_answer.main(Installation(prefix))
        case _:
            print("usage: step-images", file=sys.stderr)  # noqa: T201 - who calls it by hand
            return WRONG_USAGE


def serve(installation: Installation) -> int:
    """Serve the socket until it is idle, if it is systemd's, or somebody else has taken its place."""
    if os.geteuid() != 0:
        print("warmstart: step-images needs root", file=sys.stderr)  # noqa: T201 - who calls it by hand
        return NOT_ROOT
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        with socket.socket(fileno=FIRST_FD) as listener:
            _Server(listener, installation.step_images_program).run(idle_s=IDLE_S)
        return 0
    with _listening(installation.step_images) as listener:
        _Server(listener, installation.step_images_program).run(path=installation.step_images)
    return 0


def _listening(path: str) -> socket.socket:
    """Make the socket at `path`, in the place of one that is there, and listen. Raises `OSError`."""
    directory, name = os.path.split(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with opened_trusted(directory, make=0o711) as fd:
        fresh = f".{name}.{os.getpid()}"
        with suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=fd)
        # A path of the kernel's own is shorter than any limit (unix(7), sun_path), and follows no link.
        listener.bind(f"/proc/self/fd/{fd}/{fresh}")
        os.chmod(fresh, 0o666, dir_fd=fd)
        listener.listen(BACKLOG)
        os.rename(fresh, name, src_dir_fd=fd, dst_dir_fd=fd)
    return listener


class _Child(NamedTuple):
    """A process that answers a connection."""

    uid: int  # who asks
    since: float  # monotonic
    line: socket.socket


class _Server:
    def __init__(self, listener: socket.socket, program: str) -> None:
        self._listener = listener
        self._program = program
        self._children: dict[int, _Child] = {}  # by pid
        self._lines: dict[int, int] = {}  # a connection's descriptor → the pid of its child
        self._kept: list[tuple[float, int]] = []  # places of children that ended early: until when, and whose
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def run(self, *, idle_s: float = 0.0, path: str = "") -> None:
        """Serve until nobody has asked for `idle_s` seconds (0: for ever), or `path` is another socket."""
        self._listener.setblocking(False)
        inode = os.lstat(path).st_ino if path else 0
        last = time.monotonic()
        while not idle_s or self._children or time.monotonic() - last < idle_s:
            for fd, _ in self._poll.poll(TICK_S * 1000):
                if fd == self._listener.fileno():
                    last = time.monotonic()
                    self._accept()
                else:  # the step has gone; its child is not reaped yet, so the pid is no other's
                    self._poll.unregister(fd)
                    os.kill(self._lines[fd], signal.SIGTERM)
            self._reap()
            if path and not _is_at(path, inode):
                return

    def _accept(self) -> None:
        try:
            line, _ = self._listener.accept()
        except OSError:  # it has gone again; or there are no descriptors, and the poll would come back at once
            time.sleep(PAUSE_S)
            return
        with suppress(OSError):
            uid = peer(line)[1]
            if self._has_place(uid):
                self._start(line, uid)
                return
            line.setblocking(False)
            line.send(Answer(BUSY).encode())
        line.close()

    def _has_place(self, uid: int) -> bool:
        now = time.monotonic()
        self._kept = [(until, whose) for until, whose in self._kept if now < until]
        users = [*(child.uid for child in self._children.values()), *(whose for _, whose in self._kept)]
        return users.count(uid) < MOST_PER_USER and len(users) < MOST

    def _start(self, line: socket.socket, uid: int) -> None:
        pid = os.fork()
        if not pid:
            self._answer(line)
        self._children[pid] = _Child(uid, time.monotonic(), line)
        self._lines[line.fileno()] = pid
        self._poll.register(line, 0)  # that it was hung up is told always

    def _answer(self, line: socket.socket) -> NoReturn:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            os.dup2(null, 1)
            os.dup2(line.fileno(), 0)
            close_others({0, 1, 2})
            kept = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
            # S606: no shell; the program is the installation's own
            os.execve(self._program, [self._program, "answer"], {"LC_ALL": "C.UTF-8", **kept})  # noqa: S606
        finally:
            os._exit(NOT_STARTED)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                child = self._children.pop(pid)
                del self._lines[child.line.fileno()]
                with suppress(KeyError):
                    self._poll.unregister(child.line)
                child.line.close()
                self._kept.append((child.since + LEAST_S, child.uid))


def _is_at(path: str, inode: int) -> bool:
    try:
        return os.lstat(path).st_ino == inode
    except OSError:
        return False

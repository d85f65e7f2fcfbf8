"""`step-images`: the node's socket at which a step asks for an image that no prolog knew. Runs as root.

systemd starts it (`systemd`) when a step first asks, and it ends when nobody has asked for a while. Elsewhere
the site's init starts it, and it makes the socket itself. pyxis's importer asks (`asking`), so do all that
users like to connect: everybody may.

This process only counts and starts: for each connection that says something one child, `step-images answer`, which
reads one line, finds out whose step that is, and waits for the image (`answer`). The user whom a run of
the asking step's job names has at most `MOST_PER_USER` of them, all who are in no such step share as many, the node has
`MOST`, and each counts for at least `LEAST_S`, however soon it ends: so a flood takes little time of the node's, and
none of other users' places, whatever uids it has. Who gets one is told so at once (`HEARD`), who finds none to ask
again. When the step goes away, its child is ended.

A child that waits for other nodes of its job says so (`WAITS`), and has no place meanwhile: on these, others of the
user's steps may have taken the places that it waits for. Of a user `MOST_WAITING_PER_USER` do so, on the node
`MOST_WAITING`; any more keep their places.
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

from warmstart.host.identity import close_others
from warmstart.host.trusted import opened_trusted
from warmstart.paths import Installation
from warmstart.run import state
from warmstart.wings.step_images.asking import BUSY, HEARD, WAITS, Answer, peer
from warmstart.wings.step_images.job import job_of
from warmstart.wings.step_images.place import program_of, socket_of

MOST = 32
MOST_PER_USER = 4
MOST_WAITING = 128
MOST_WAITING_PER_USER = 32
MOST_SILENT = 64  # connections that have said nothing yet; they have no place
SILENT_S = 1.0
STRANGER = -1  # in place of the uid of who is in no step that a run knows
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
            from warmstart.wings.step_images import answer

            return answer.main(Installation(prefix))
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
            _Server(listener, installation).run(idle_s=IDLE_S)
        return 0
    with _listening(socket_of(installation)) as listener:
        _Server(listener, installation).run(path=socket_of(installation))
    return 0


def _listening(path: str) -> socket.socket:
    """Make the socket at `path`, in the place of one that is there, and listen. Raises `OSError`."""
    directory, name = os.path.split(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with opened_trusted(directory, make=0o755) as fd:
        fresh = f".{name}.{os.getpid()}"
        with suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=fd)
        # A path of the kernel's own is shorter than any limit (unix(7), sun_path), and follows no link.
        listener.bind(f"/proc/self/fd/{fd}/{fresh}")
        os.chmod(fresh, 0o666, dir_fd=fd)
        listener.listen(BACKLOG)
        os.rename(fresh, name, src_dir_fd=fd, dst_dir_fd=fd)
    return listener


def place_of(installation: Installation, pid: int, uid: int) -> int:
    """Return the user on whom a process counts: `uid` if a run says that the job of its step is that user's.

    Users have many uids (subuid(5)), but none of them is in a run.
    """
    job_id = job_of(pid)
    if job_id is None:
        return STRANGER
    owners = (state.owner(installation.node(node).state, job_id) for node in installation.nodes())
    return uid if uid in owners else STRANGER


class _Line(NamedTuple):
    """A connection: one that has said nothing yet, or one that a process answers."""

    since: float  # monotonic
    line: socket.socket
    whose: int = STRANGER  # whose place it has
    said: int = -1  # the descriptor on which its process says whether it waits for others


class _Server:
    def __init__(self, listener: socket.socket, installation: Installation) -> None:
        self._listener = listener
        self._installation = installation
        self._silent: dict[int, _Line] = {}  # by descriptor, the oldest first
        self._children: dict[int, _Line] = {}  # by pid
        self._lines: dict[int, int] = {}  # a connection's descriptor, or that of `said` → the pid of its child
        self._waiting: dict[int, int] = {}  # pids of children that wait for other nodes → whose they are
        self._kept: list[tuple[float, int]] = []  # places of children that ended early: until when, and whose
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def run(self, *, idle_s: float = 0.0, path: str = "") -> None:
        """Serve until nobody has asked for `idle_s` seconds (0: for ever), or `path` is another socket."""
        self._listener.setblocking(False)
        inode = os.lstat(path).st_ino if path else 0
        last, listening = time.monotonic(), self._listener.fileno()
        while not idle_s or self._children or time.monotonic() - last < idle_s:
            # The listener comes last: a new connection has the number of one that ended, for which an event may wait.
            for fd, _ in sorted(self._poll.poll(TICK_S * 1000), key=lambda event: event[0] == listening):
                if fd == listening:
                    last = time.monotonic()
                    self._accept()
                elif fd in self._silent:
                    self._hear(fd)
                elif self._children[self._lines[fd]].said == fd:
                    self._hear_child(fd)
                else:  # the step has gone; its child is not reaped yet, so the pid is no other's
                    self._poll.unregister(fd)
                    os.kill(self._lines[fd], signal.SIGTERM)
            self._end_silent()
            self._reap()
            if path and not _is_at(path, inode):
                return

    def _accept(self) -> None:
        try:
            line, _ = self._listener.accept()
        except OSError:  # it has gone again; or there are no descriptors, and the poll would come back at once
            time.sleep(PAUSE_S)
            return
        line.setblocking(False)
        self._silent[line.fileno()] = _Line(time.monotonic(), line)
        self._poll.register(line, select.POLLIN)
        self._hear(line.fileno())  # a step has said its line by now

    def _hear(self, fd: int) -> None:
        """Let a connection that has spoken be answered, if there is a place; one that was hung up is closed."""
        line = self._silent[fd].line
        try:
            said = line.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:  # it has gone
            said = b""
        with suppress(OSError):
            if said and self._is_started(line):
                return
        self._forget(fd)

    def _hear_child(self, fd: int) -> None:
        pid = self._lines[fd]
        said = os.read(fd, 64)
        if not said:  # it has ended
            self._poll.unregister(fd)
        elif said.endswith(WAITS) and self._may_wait(whose := self._children[pid].whose):
            self._waiting[pid] = whose
        else:
            self._waiting.pop(pid, None)

    def _may_wait(self, whose: int) -> bool:
        users = [*self._waiting.values()]
        return users.count(whose) < MOST_WAITING_PER_USER and len(users) < MOST_WAITING

    def _forget(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._silent.pop(fd).line.close()

    def _end_silent(self) -> None:
        while self._silent:
            fd, oldest = next(iter(self._silent.items()))
            if len(self._silent) <= MOST_SILENT and time.monotonic() - oldest.since < SILENT_S:
                return
            self._forget(fd)

    def _has_place(self, whose: int) -> bool:
        now = time.monotonic()
        self._kept = [(until, user) for until, user in self._kept if now < until]
        held = (child.whose for pid, child in self._children.items() if pid not in self._waiting)
        users = [*held, *(user for _, user in self._kept)]
        return users.count(whose) < MOST_PER_USER and len(users) < MOST

    def _is_started(self, line: socket.socket) -> bool:
        whose = place_of(self._installation, *peer(line)[:2])
        if not self._has_place(whose):
            line.send(Answer(BUSY).encode())
            return False
        line.send(HEARD)
        said, says = os.pipe()
        try:
            pid = os.fork()
            if not pid:
                self._answer(line, says)
        except OSError:
            os.close(said)
            raise
        finally:
            os.close(says)
        del self._silent[line.fileno()]
        self._children[pid] = _Line(time.monotonic(), line, whose, said)
        self._lines[line.fileno()] = self._lines[said] = pid
        self._poll.modify(line, 0)  # that it was hung up is told always
        self._poll.register(said, select.POLLIN)
        return True

    def _answer(self, line: socket.socket, says: int) -> NoReturn:
        try:
            os.dup2(says, 1)
            os.dup2(line.fileno(), 0)
            close_others({0, 1, 2})
            kept = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
            program = program_of(self._installation)
            # S606: no shell; the program is the installation's own
            os.execve(program, [program, "answer"], {"LC_ALL": "C.UTF-8", **kept})  # noqa: S606
        finally:
            os._exit(NOT_STARTED)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                child = self._children.pop(pid)
                self._waiting.pop(pid, None)
                for fd in (child.line.fileno(), child.said):
                    del self._lines[fd]
                    with suppress(KeyError):
                        self._poll.unregister(fd)
                os.close(child.said)
                child.line.close()
                self._kept.append((child.since + LEAST_S, child.whose))


def _is_at(path: str, inode: int) -> bool:
    try:
        return os.lstat(path).st_ino == inode
    except OSError:
        return False

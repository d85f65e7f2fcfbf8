"""Two operations at once, stopped before calls that touch the store, in every order with up to two switches.

Each operation is a thread that runs only when it is told to; so an order is the same each time. A switch before a call
that does not concern what the other one touches gives the same as a switch before the next call that does. So only
these calls count: what each touches is learnt from runs one after the other. A switch may also leave the one that goes
on with an old view: a listing, or a file that was replaced, as it was when it was stopped, as NFS and GlusterFS may.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from warmstart.store.atomic import TEMP_PREFIX

LONGEST_S = 60.0
TO_THE_END = 10_000  # more calls than any operation has
OLD_S = 4 * 86_400.0  # longer than anything stays that nobody names
SLOW_S = 1800.0  # by which the second one's clock is behind
_CALLS = ("open", "mkdir", "link", "rename", "unlink", "rmdir", "listdir", "scandir", "stat", "utime", "symlink")
_real: dict[str, Any] = {name: getattr(os, name) for name in (*_CALLS, "readlink", "fstat", "close")}
_here = threading.local()


class Touch(NamedTuple):
    """What a call does to a path of the store."""

    how: str  # look, list, make or drop
    path: str  # below the store; what is random in names is left out


class Schedule(NamedTuple):
    """An order: `first` runs for so many of its calls that count, then the other one, then `first` to its end."""

    first: int  # 0 or 1: which operation begins
    calls: int
    others: int = TO_THE_END
    view: int = 0  # the how manieth chance of an old view is taken; 0: none

    @property
    def length(self) -> tuple[int, ...]:
        """By which the shortest is found: switches, then calls."""
        return (self.others < TO_THE_END, self.view > 0, self.calls + self.others % TO_THE_END)


class Step(NamedTuple):
    """One call of an operation, for who reads a failing schedule."""

    actor: str
    call: str
    path: str
    remark: str = ""


class _Old:
    """A file's status with other times."""

    def __init__(self, status: os.stat_result, ctime: float, mtime: float) -> None:
        self._status, self.st_ctime, self.st_mtime = status, ctime, mtime

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what a status has
        return getattr(self._status, name)


class Actor:
    """One operation in a thread of its own, which runs while `run` waits."""

    def __init__(self, name: str, act: Callable[[], object], stage: Stage, others: frozenset[Touch]) -> None:
        """`others`: what the other operation touches."""
        self.name, self.stage = name, stage
        self.is_slow = False
        self.result: object = None
        self.error: BaseException | None = None
        self.ended = False
        self.counted = 0  # calls that count
        self.touched: set[Touch] = set()
        self.view: _View | None = None
        self._others = _Footprint(others)
        self._left = 0
        self._go, self._turn = threading.Semaphore(0), threading.Semaphore(0)
        self._act = act
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        _here.actor = self
        try:
            self.result = self._act()
        except Exception as error:  # noqa: BLE001 - judged by the caller
            self.error = error
        finally:
            _here.actor = None
            self.ended = True
            self._turn.release()

    def run(self, calls: int) -> None:
        """Let it go on for so many calls that count; it stops before the next one, or ends."""
        if self.ended:
            return
        self._left = calls
        self._go.release()
        assert self._turn.acquire(timeout=LONGEST_S), f"{self.name} hangs"

    def _stop(self) -> None:
        self._turn.release()
        self._go.acquire()

    def blocked(self) -> None:
        """Wait for the other one: it has a lock."""
        self._left = -1
        self._stop()

    def call(self, name: str, args: tuple[Any, ...], kw: dict[str, Any]) -> Any:  # noqa: ANN401 - of a function of os
        """Make one call, before which it may stop."""
        touches = self.stage.touches(name, args, kw)
        if touches is None:
            return _real[name](*args, **kw)
        if any(map(self._others.concerns, touches)):
            if self._left == 0:
                self._stop()
                touches = self.stage.touches(name, args, kw) or touches  # the other one may have made it
            self._left -= 1
            self.counted += 1
        self.touched.update(touches)
        remark = ""
        try:
            if self.view is not None and (old := self.view.instead(name, args, kw, touches)) is not None:
                remark = "old view"
                return old.value
            if self.view is not None:
                self.view.changed(touches)
            value = _real[name](*args, **kw)
            self.stage.changed(touches)
            return value
        except OSError as error:
            remark = type(error).__name__
            raise
        finally:
            self.stage.trace.append(Step(self.name, name, " ".join(touch.path for touch in touches), remark))


class _Value(NamedTuple):
    value: Any


class _View:
    """The store as an operation saw it when it was stopped; one chance of an old view is taken."""

    def __init__(self, stage: Stage, chance: int) -> None:
        self._stage, self._chance = stage, chance
        self.taken = False
        self._listings: dict[str, list[str]] = {}
        self._files: dict[str, tuple[int, int]] = {}  # inode, descriptor
        self._seen: set[str] = set()  # files that were opened since
        for top, folders, files in os.walk(stage.path):
            self._listings[top] = folders + files
            for file in files:
                path = f"{top}/{file}"
                fd = _real["open"](path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                self._files[path] = (_real["fstat"](fd).st_ino, fd)

    def close(self) -> None:
        for _, fd in self._files.values():
            _real["close"](fd)

    def changed(self, touches: Sequence[Touch]) -> None:
        """Forget what this operation changed itself: whoever writes sees that."""
        for touch in touches:
            if touch.how in {"make", "drop"}:
                self._listings.pop(os.path.dirname(f"{self._stage.path}/{touch.path}"), None)

    def instead(self, name: str, args: tuple[Any, ...], kw: dict[str, Any], touches: Sequence[Touch]) -> _Value | None:
        """Return the old view in place of a call's, if this is the chance to take."""
        path = self._stage.resolve(args[0] if args else ".", kw.get("dir_fd"))
        if name == "listdir":
            old = self._listings.pop(path, None)  # nobody sees an old one after a new one
            is_old = old is not None and set(old) != set(_real["listdir"](args[0])) and self._is_it()
            return _Value(old) if is_old else None
        if name != "open" or touches[0].how != "look" or path in self._seen or path not in self._files:
            return None
        self._seen.add(path)
        inode, fd = self._files[path]
        with suppress(FileNotFoundError):
            if _real["stat"](path, follow_symlinks=False).st_ino != inode and self._is_it():
                return _Value(_real["open"](f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
        return None

    def _is_it(self) -> bool:
        self._chance -= 1
        self.taken = self.taken or self._chance == 0
        return self._chance == 0


class _Footprint:
    """What an operation touches, by path."""

    def __init__(self, touches: frozenset[Touch]) -> None:
        self._how: dict[str, set[str]] = {}
        self._changed_in: set[str] = set()  # directories
        for how, path in touches:
            self._how.setdefault(path, set()).add(how)
            if how in {"make", "drop"}:
                self._changed_in.add(os.path.dirname(path))

    def concerns(self, touch: Touch) -> bool:
        """Return whether it matters to this operation, or the other way round, which of the two comes first."""
        how, path = touch
        parent, known = os.path.dirname(path), self._how.get(path, set())
        if how == "look":
            return not known.isdisjoint({"make", "drop"})
        if how == "list":
            return path in self._changed_in
        # Nobody takes a temporary file for anything, but a directory with one is not empty.
        is_listed = "list" in self._how.get(parent, ()) and not os.path.basename(path).startswith(TEMP_PREFIX)
        is_emptied = "drop" in self._how.get(parent, ())
        return bool(known) or is_listed or is_emptied or (how == "drop" and path in self._changed_in)


class Stage:
    """The directory in which operations run, and the time that they see. One at a time, within `played`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.trace: list[Step] = []
        self.old: set[int] = set()  # inodes of what was there before
        self.began = 0.0  # time.time()
        self._ticks = 0

    def begin(self) -> None:
        """Begin a new run: what is there now is old."""
        self.trace, self._ticks = [], 0
        self.old = set()
        for top, folders, files in os.walk(self.path):
            self.old.update(_real["stat"](f"{top}/{name}", follow_symlinks=False).st_ino for name in folders + files)

    def now(self) -> float:
        """Return the time, which goes on by a millisecond each time that somebody asks."""
        self._ticks += 1
        return self.began + self._ticks / 1000 - (SLOW_S if _here.actor.is_slow else 0.0)

    def aged(self, status: os.stat_result) -> Any:  # noqa: ANN401 - like a status
        """Return a status with the times of this run."""
        now = self.began + self._ticks / 1000
        changed = now - OLD_S if status.st_ino in self.old else now
        return _Old(status, changed, changed if stat.S_ISDIR(status.st_mode) else min(changed, status.st_mtime))

    def changed(self, touches: Sequence[Touch]) -> None:
        """Note that a call has changed files and their directories."""
        for how, path in touches:
            if how in {"make", "drop"}:
                for name in (path, os.path.dirname(path)):
                    with suppress(FileNotFoundError):
                        self.old.discard(_real["stat"](f"{self.path}/{name}", follow_symlinks=False).st_ino)

    def _fstat(self, fd: int) -> Any:  # noqa: ANN401 - like a status
        return self.aged(_real["fstat"](fd))

    def resolve(self, path: Any, dir_fd: int | None) -> str:  # noqa: ANN401 - what os takes
        """Return a path in full."""
        if isinstance(path, int):
            return str(_real["readlink"](f"/proc/self/fd/{path}"))
        path = str(os.fspath(path))
        if dir_fd is not None and not path.startswith("/"):
            path = f"{_real['readlink'](f'/proc/self/fd/{dir_fd}')}/{path}"
        return str(os.path.normpath(path))

    def touches(self, name: str, args: tuple[Any, ...], kw: dict[str, Any]) -> list[Touch] | None:
        """Return what a call does; None if it is not about the store."""
        path = self.resolve(args[0] if args else ".", kw.get("src_dir_fd", kw.get("dir_fd")))
        target = path
        if name in {"link", "rename", "symlink"}:
            target = self.resolve(args[1], kw.get("dst_dir_fd", kw.get("dir_fd")))
        if not target.startswith(self.path):
            return None
        is_there = os.path.lexists(target)
        if name == "open":
            how = "make" if args[1] & os.O_CREAT and not is_there else "look"
        elif name in {"mkdir", "link", "symlink"}:
            how = "look" if is_there else "make"
        elif name in {"unlink", "rmdir"}:
            how = "drop" if is_there else "look"
        else:
            how = {"listdir": "list", "scandir": "list", "rename": "make", "utime": "make"}.get(name, "look")
        source = [Touch("drop", self._plain(path))] if name == "rename" else []
        return [*source, Touch(how, self._plain(target))]

    def _plain(self, path: str) -> str:
        """Return a path below the store without what differs from run to run: times, and names of temporary files."""
        below = path.removeprefix(self.path).removesuffix(" (deleted)").strip("/")
        folder, name = os.path.split(below)
        if name.startswith(TEMP_PREFIX):
            name = f"{TEMP_PREFIX}{name.split('-')[1]}"
        elif len(name) > 40 and name[23:24] == "-":
            name = name[23:]
        return f"{folder}/{name}".strip("/")

    @contextmanager
    def played(self) -> Iterator[None]:
        """Have all calls of operations pass through here for a `with`; those of others are untouched."""
        real: dict[str, Any] = {"time": time.time, "time_ns": time.time_ns, "sleep": time.sleep, "flock": fcntl.flock}
        self.began = real["time"]()

        def passing(name: str) -> Callable[..., Any]:
            def call(*args: Any, **kw: Any) -> Any:  # noqa: ANN401
                actor = getattr(_here, "actor", None)
                value = _real[name](*args, **kw) if actor is None else actor.call(name, args, kw)
                return self.aged(value) if actor is not None and name == "stat" else value

            call.__name__ = name
            return call

        def acting(own: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:  # noqa: ANN401
                return (otherwise if getattr(_here, "actor", None) is None else own)(*args)

            return call

        for name in _CALLS:
            setattr(os, name, passing(name))
        os.fstat = acting(self._fstat, _real["fstat"])
        os.fsync, fsync = acting(lambda _fd: None, os.fsync), os.fsync
        time.time = acting(self.now, real["time"])
        time.time_ns = acting(lambda: int(self.now() * 1e6) * 1000, real["time_ns"])
        time.sleep = acting(lambda _seconds: _here.actor.blocked(), real["sleep"])
        fcntl.flock = acting(lambda _fd, _how: None, real["flock"])
        try:
            yield
        finally:
            for name in (*_CALLS, "fstat"):
                setattr(os, name, _real[name])
            os.fsync, fcntl.flock = fsync, real["flock"]
            time.time, time.time_ns, time.sleep = real["time"], real["time_ns"], real["sleep"]


class Run(NamedTuple):
    """What came of one schedule."""

    actors: tuple[Actor, Actor]
    trace: list[Step]
    happened: bool  # False: an operation ended before it was to stop, so that this is another schedule


def play(
    stage: Stage,
    acts: Sequence[tuple[str, Callable[[], object]]],
    schedule: Schedule,
    footprints: Sequence[frozenset[Touch]],
    watch: Callable[[Sequence[Actor]], object],
) -> Run:
    """Run two operations in one order. `watch` is called after each part."""
    pair = tuple(Actor(name, act, stage, footprints[1 - number]) for number, (name, act) in enumerate(acts))
    pair[1].is_slow = True
    first, other = pair[schedule.first], pair[1 - schedule.first]
    view = None
    first.run(schedule.calls)
    happened = not first.ended or schedule.calls == TO_THE_END
    watch(pair)
    if schedule.view:
        view = _View(stage, schedule.view)
    other.run(schedule.others)
    happened = happened and (not other.ended or schedule.others == TO_THE_END)
    watch(pair)
    first.view = view
    while not (first.ended and other.ended):  # more than once only if one waits for the other's lock
        first.run(TO_THE_END)
        other.run(TO_THE_END)
    watch(pair)
    if view is not None:
        view.close()
        happened = happened and view.taken
    return Run((pair[0], pair[1]), stage.trace, happened)


def restore(template: Path, stage: Path) -> None:
    """Bring a stage back: its files are links to those of the template, which nobody writes in place."""
    for top, folders, files in os.walk(stage, topdown=False):
        for name in files:
            os.unlink(f"{top}/{name}")
        for name in folders:
            os.rmdir(f"{top}/{name}")
    for top, folders, files in os.walk(template):
        target = str(stage) + top.removeprefix(str(template))
        for name in folders:
            os.mkdir(f"{target}/{name}", _real["stat"](f"{top}/{name}").st_mode & 0o777)
        for name in files:
            os.link(f"{top}/{name}", f"{target}/{name}")

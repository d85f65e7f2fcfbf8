"""Run module-level functions in a forked child that has taken another identity for good.

A child and not seteuid, because a FUSE mount also checks the real and the saved uid, and because a file system that
hangs then hangs the child and not the hook (docs/architecture.md, rules 6 and 7). JSON over pipes and not pickle,
because the child's answers are untrusted data (docs/threats.md, row 7). Only clients and doctor's probes import this
module; the errors that their callers handle, such as `WorkerSilent`, are in `host.identity`.

Hot path: a warm prolog pays one fork and a few short messages.
"""

from __future__ import annotations

import os
import select

from warmstart.errors import NodeError, WarmstartError, by_code
from warmstart.host import wire
from warmstart.host.deadline import Deadline
from warmstart.host.files import file_of, write_all
from warmstart.host.identity import (
    SIGKILL,
    Identity,
    ProgramNotStarted,
    WorkerAnswerMalformed,
    WorkerDied,
    WorkerSilent,
    become,
    close_others,
    confine,
    detach,
    surrender,
)
from warmstart.host.wire import Json
from warmstart.lean import TYPE_CHECKING, Callable, Iterable, NamedTuple, Sequence, dumps, suppress

if TYPE_CHECKING:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

_LONGEST_MESSAGE = 64 << 20
_LONGEST_POLL_S = 86_400.0  # poll(2) takes 24 days of milliseconds


class WorkerBug(RuntimeError):
    """The function raised an unexpected exception; the text is the child's traceback."""


class _SystemError(NamedTuple):
    """An `OSError` of the child."""

    errno: int | None
    text: str | None
    file: str


class Worker:
    """A child process with `identity`, forked at the first call and alive until `close`.

    `what` is the subject of its errors, in words that users have. `rooms` says whose functions may run as this
    identity: `warmstart.store.` those of a package, `warmstart.slurm.nodes:` those of a module. `keep` are descriptors
    that stay open in the child. `confine` sandboxes it for functions that parse hostile bytes: no network, no new
    privileges, bounded memory, no writes to files (`identity.confine`). `real_uid` is that of `become`, for an identity
    with hostile processes. `groups`: it has these supplementary groups, and all three ids, which a FUSE file system
    asks for, are its own; it cannot be traced nevertheless (`identity.surrender`), but stopped.
    """

    def __init__(
        self,
        identity: Identity,
        what: str = "",
        *,
        rooms: tuple[str, ...],
        keep: Iterable[int] = (),
        confine: bool = False,
        real_uid: int | None = None,
        groups: Sequence[int] | None = None,
    ) -> None:
        self.identity = identity
        self._what = what or f"work as {identity.name}"
        self._rooms = rooms
        self._keep = frozenset(keep)
        self._confine = confine
        self._real_uid = real_uid
        self._groups = groups
        self._pid = 0
        self._requests = -1
        self._answers = -1

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def another(self, keep: Iterable[int] = ()) -> Worker:
        """Return a worker for the same work with a process of its own, which has these descriptors, too."""
        return Worker(self.identity, self._what, rooms=self._rooms, keep=keep)

    def run(self, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the module-level `function` in the child and return its result.

        Arguments and result must have types that `wire` can send; both sides check them against the function's
        annotations. Raises the function's own `WarmstartError` or `OSError`, `ProgramNotStarted`, `WorkerSilent` at the
        deadline, `WorkerDied` if the child died, `WorkerAnswerMalformed` for a result of another type, and `WorkerBug`
        for any other exception; `ValueError` for a function of another room.
        """
        return self.begin(deadline, function, *args, **kwargs)()

    def begin(self, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Callable[[], R]:
        """Have the child run a function; return what waits for its result, as `run` does. It does one at a time."""
        name = f"{function.__module__}:{function.__qualname__}"
        if not name.startswith(self._rooms):
            raise ValueError(f"{name} may not run as {self.identity.name}")
        self._ask(name, args, kwargs, deadline)

        def result() -> R:
            try:
                value: R = wire.decode(wire.hints(function)["return"], self._answer(deadline))
            except wire.WireMismatch as error:
                self.close()
                raise WorkerAnswerMalformed(function=name, identity=self.identity.name, problem=error) from error
            return value

        return result

    def look(self, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that may run twice, as `run` does; once more if the child dies, and its locks with it."""
        try:
            return self.run(deadline, function, *args, **kwargs)
        except WorkerDied:
            return self.run(deadline, function, *args, **kwargs)

    def _ask(self, name: str, args: tuple[Json, ...], kwargs: dict[str, Json], deadline: Deadline) -> None:
        if deadline.expired():
            problem = "no time was left to ask; what came before took all of it"
            raise WorkerSilent(what=self._what, problem=problem)
        if not self._pid:
            self._start()
        with suppress(BrokenPipeError):  # a child that has already ended may have sent the reason
            _send(self._requests, [name, args, kwargs])

    def _answer(self, deadline: Deadline) -> Json:
        try:
            answer = _receive(self._answers, deadline)
        except (TimeoutError, EOFError) as error:
            kind: type[WorkerSilent] = WorkerSilent if isinstance(error, TimeoutError) else WorkerDied
            problem = str(error)
            is_a_users = self._groups is not None or self._real_uid is not None
            if kind is WorkerSilent and is_a_users and _is_stopped(self._pid):
                problem = f"a signal has stopped the process of {self.identity.name}; no file system is at fault"
            self.close()
            raise kind(what=self._what, problem=problem) from error
        return _unpack(answer)

    def close(self) -> None:
        """Kill the child, if any; this releases its locks."""
        if not self._pid:
            return
        os.close(self._requests)
        os.close(self._answers)
        pid, self._pid = self._pid, 0
        os.kill(pid, SIGKILL)
        # A child that hangs in the kernel on a dead file system dies only when that answers: do not wait for it.
        for pause_ms in (0.2, 0.2, 0.2, 0.4, 1.0, *(2.0,) * 49):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            select.select([], [], [], pause_ms / 1000)

    def _start(self) -> None:
        pipes: list[int] = []
        try:
            for _ in range(2):
                pipes += os.pipe()
            pid = os.fork()
        except OSError as error:
            for fd in pipes:
                os.close(fd)
            raise ProgramNotStarted(program=f"a process as {self.identity.name}", problem=error.strerror) from error
        request_read, self._requests, self._answers, answer_write = pipes
        if pid:
            self._pid = pid
            os.close(request_read)
            os.close(answer_write)
            return
        try:  # the child: no exception may reach the hook's own code
            if problem := self._become(request_read, answer_write):
                not_started = {"program": f"a process as {self.identity.name}", "problem": problem}
                _send(answer_write, {"code": ProgramNotStarted.code, "fields": not_started})
            else:
                _serve(request_read, answer_write)
        except BaseException:  # noqa: BLE001 - the parent raises it
            _send(answer_write, _bug())
        finally:
            os._exit(0)

    def _become(self, requests: int, answers: int) -> str:
        """Take the identity, in the child; return why that failed, "" if it did not."""
        try:
            detach()
            close_others(self._keep | {0, 1, 2, requests, answers})
            if self._confine:
                confine(self.identity)
            elif self._groups is not None:
                surrender(self.identity, self._groups)
            else:
                become(self.identity, self._real_uid)
        except OSError as error:
            return error.strerror or str(error)
        return ""


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # it is not reaped yet
        return file.read(256).rpartition(b") ")[2][:1] == b"T"  # proc(5): stopped by a signal


def _serve(requests: int, answers: int) -> None:
    while True:
        try:
            name, args, kwargs = _receive(requests, None)
        except EOFError:
            return
        _send(answers, _answer(name, args, kwargs))


def _answer(name: str, args: list[Json], kwargs: dict[str, Json]) -> dict[str, Json]:
    try:
        function = wire.function_named(name)
        args, kwargs = wire.arguments(function, args, kwargs)
        return {"value": function(*args, **kwargs)}
    except WarmstartError as error:
        return {"code": error.code, "fields": {k: str(v) for k, v in error.fields.items()}}
    except OSError as error:
        return {"errno": error.errno, "text": error.strerror, "file": file_of(error)}
    except Exception:  # noqa: BLE001 - the parent raises it as a bug, with this text
        return _bug()


def _bug() -> dict[str, Json]:
    import traceback

    return {"bug": traceback.format_exc()}


def _unpack(answer: Json) -> Json:
    """Return the value of an answer, or raise the error that it describes."""
    if type(answer) is not dict:
        raise wire.WireMismatch("the answer is not an object")
    if "value" in answer:
        return answer["value"]
    if "errno" in answer:
        raise OSError(*wire.decode(_SystemError, [answer.get(key) for key in ("errno", "text", "file")]))
    if "bug" in answer:
        raise WorkerBug(str(answer["bug"]))
    cls = by_code(wire.decode(str, answer.get("code")))
    # A process with fewer rights never decides that this node is broken.
    if cls is None or issubclass(cls, NodeError):
        raise wire.WireMismatch(f"unknown error {answer!r:.200}")
    fields = wire.decode(dict[str, str], answer.get("fields"))
    try:
        error = cls(**fields)
        str(error)
    except (TypeError, KeyError, AssertionError) as unfit:
        raise wire.WireMismatch(f"not the fields of {cls.code}: {sorted(fields)!r:.200}") from unfit
    raise error


def _send(fd: int, message: Json) -> None:
    data = dumps(message).encode()
    write_all(fd, len(data).to_bytes(4, "big") + data)


def _receive(fd: int, deadline: Deadline | None) -> Json:
    length = int.from_bytes(_read_exactly(fd, 4, deadline), "big")
    if length > _LONGEST_MESSAGE:
        raise wire.WireMismatch(f"the message of {length} bytes is too long")
    data = _read_exactly(fd, length, deadline)
    try:
        return wire.parse(data)
    except (ValueError, RecursionError) as error:
        raise wire.WireMismatch("the message is not JSON") from error


def _read_exactly(fd: int, length: int, deadline: Deadline | None) -> bytes:
    data = bytearray()
    answer = select.poll()  # select(2) takes no descriptor above 1023
    answer.register(fd, select.POLLIN)
    while len(data) < length:
        while deadline is not None and not answer.poll(min(deadline.left(), _LONGEST_POLL_S) * 1000):
            if deadline.expired():
                raise TimeoutError("no answer before the deadline")
        chunk = os.read(fd, length - len(data))
        if not chunk:
            raise EOFError("the helper process that was at work there died")
        data += chunk
    return bytes(data)

"""Ask a question of a process with another identity: a child is forked, answers, and is gone.

A child and not seteuid, because a FUSE mount also checks the real and the saved uid, and because a file system that
hangs then hangs the child and not the hook (docs/architecture.md, rules 6 and 7). The child has the caller's memory, so
a question is a function with its arguments. The answer comes back as JSON and not as a pickle, because it is untrusted
data (docs/threats.md, row 7). Only clients and doctor's probes import this module; the errors that their callers
handle, such as `WorkerSilent`, are in `host.identity`.

Hot path: a warm prolog pays one fork for all that it asks the store.
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
    detach,
)
from warmstart.host.wire import Json
from warmstart.lean import TYPE_CHECKING, Callable, Iterable, Iterator, NamedTuple, contextmanager, dumps

if TYPE_CHECKING:
    from contextlib import AbstractContextManager as Asked
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


class Worker(NamedTuple):
    """Who answers questions. Each has a process of its own.

    `what` is the subject of its errors, in words that users have; "" stands for "work as NAME". `keep` are the only
    descriptors of the caller's that the process has. `take` makes it the identity for good: `identity.become`;
    `confine` for functions that parse hostile bytes; `surrender` or a real uid for a user whose own processes could
    otherwise trace it.
    """

    identity: Identity
    what: str = ""
    keep: tuple[int, ...] = ()
    take: Callable[[Identity], None] = become

    def keeping(self, *keep: int) -> Worker:
        """Return the same with these descriptors."""
        return self._replace(keep=keep)

    def run(self, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `function` in a child and return its result, which must have a type that `wire` can send.

        Raises the function's own `WarmstartError` or `OSError`, `ProgramNotStarted`, `WorkerSilent` at the deadline,
        `WorkerDied` if the child died, `WorkerAnswerMalformed` for a result of another type than the function's
        annotation says, and `WorkerBug` for any other exception.
        """
        with self.begin(deadline, function, *args, **kwargs) as answer:
            return answer(deadline)

    def begin(
        self, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> Asked[Callable[[Deadline], R]]:
        """Have a child run a function for a `with`, which gets what waits for the result, as `run` does.

        The child lives as long as the `with`, and as its caller: so do the locks that it has taken.
        """
        return self._asked(deadline, function, lambda: [function(*args, **kwargs)], wire.result_of(function))

    def stream(
        self, deadline: Deadline, function: Callable[P, Iterator[R]], *args: P.args, **kwargs: P.kwargs
    ) -> Asked[Callable[[Deadline], R]]:
        """As `begin`, for a function whose results are sent one by one, each as soon as it is there."""
        kind = wire.result_of(function).__args__[0]
        return self._asked(deadline, function, lambda: function(*args, **kwargs), kind)

    @contextmanager
    def _asked(
        self, deadline: Deadline, function: Callable[..., object], results: Callable[[], Iterable[object]], kind: object
    ) -> Iterator[Callable[[Deadline], Json]]:
        if deadline.expired():
            raise self._silent(WorkerSilent, "no time was left to ask; what came before took all of it")
        pid, answers = self._fork(results)

        def answer(until: Deadline) -> Json:
            try:
                return wire.decode(kind, _unpack(self._received(pid, answers, until)))
            except wire.WireMismatch as error:
                name = f"{function.__module__}:{function.__qualname__}"
                raise WorkerAnswerMalformed(function=name, identity=self.identity.name, problem=error) from error

        try:
            yield answer
        finally:
            os.close(answers)
            _end(pid)

    def _received(self, pid: int, answers: int, deadline: Deadline) -> Json:
        try:
            return _receive(answers, deadline)
        except TimeoutError as error:
            problem = f"a signal has stopped the process of {self.identity.name}; no file system is at fault"
            raise self._silent(WorkerSilent, problem if _is_stopped(pid) else str(error)) from error
        except EOFError as error:
            raise self._silent(WorkerDied, str(error)) from error

    def _silent(self, kind: type[WorkerSilent], problem: str) -> WorkerSilent:
        return kind(what=self.what or f"work as {self.identity.name}", problem=problem)

    def _not_started(self, error: OSError) -> ProgramNotStarted:
        problem = error.strerror or str(error)
        return ProgramNotStarted(program=f"a process as {self.identity.name}", problem=problem)

    def _fork(self, results: Callable[[], Iterable[object]]) -> tuple[int, int]:
        """Return the pid of a child that answers, and where."""
        pipe: tuple[int, ...] = ()
        try:
            pipe = os.pipe()
            pid = os.fork()
        except OSError as error:
            for fd in pipe:
                os.close(fd)
            raise self._not_started(error) from error
        answers, out = pipe
        if pid:
            os.close(out)
            return pid, answers
        try:  # the child: no exception may reach the hook's own code
            self._answer(results, out)
        except BaseException:  # noqa: BLE001 - the parent raises it
            _send(out, _bug())
        finally:
            os._exit(0)

    def _answer(self, results: Callable[[], Iterable[object]], out: int) -> None:
        """Become the identity, in the child, and send the results; end with the caller's interest in them."""
        try:
            detach()
            close_others({*self.keep, 0, 1, 2, out})
            self.take(self.identity)
        except OSError as error:
            _send(out, _as_sent(self._not_started(error)))
            return
        try:
            for value in results():
                _send(out, {"value": value})
        except WarmstartError as error:
            _send(out, _as_sent(error))
        except OSError as error:
            _send(out, {"errno": error.errno, "text": error.strerror, "file": file_of(error)})
        let_go = select.poll()
        let_go.register(out, 0)  # POLLERR, which needs not be asked for: nobody can read any more
        let_go.poll()


def _end(pid: int) -> None:
    os.kill(pid, SIGKILL)
    # A child that hangs in the kernel on a dead file system dies only when that answers: do not wait for it.
    for pause_ms in (0.2, 0.2, 0.2, 0.4, 1.0, *(2.0,) * 49):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        select.select([], [], [], pause_ms / 1000)


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # it is not reaped yet
        return file.read(256).rpartition(b") ")[2][:1] == b"T"  # proc(5): stopped by a signal


def _as_sent(error: WarmstartError) -> dict[str, Json]:
    return {"code": error.code, "fields": {k: str(v) for k, v in error.fields.items()}}


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


def _receive(fd: int, deadline: Deadline) -> Json:
    length = int.from_bytes(_read_exactly(fd, 4, deadline), "big")
    if length > _LONGEST_MESSAGE:
        raise wire.WireMismatch(f"the message of {length} bytes is too long")
    data = _read_exactly(fd, length, deadline)
    try:
        return wire.parse(data)
    except (ValueError, RecursionError) as error:
        raise wire.WireMismatch("the message is not JSON") from error


def _read_exactly(fd: int, length: int, deadline: Deadline) -> bytes:
    data = bytearray()
    answer = select.poll()  # select(2) takes no descriptor above 1023
    answer.register(fd, select.POLLIN)
    while len(data) < length:
        while not answer.poll(min(deadline.left(), _LONGEST_POLL_S) * 1000):
            if deadline.expired():
                raise TimeoutError("no answer before the deadline")
        chunk = os.read(fd, length - len(data))
        if not chunk:
            raise EOFError("the helper process that was at work there died")
        data += chunk
    return bytes(data)

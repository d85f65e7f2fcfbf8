"""A worker runs named functions under another identity; its word is JSON, its silence an error."""

import errno
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

import pytest

from warmstart.errors import NodeError, UserError
from warmstart.host.deadline import after
from warmstart.host.identity import Identity, ProgramNotStarted, WorkerAnswerMalformed, WorkerSilent
from warmstart.host.worker import Worker, WorkerBug

ME = Identity("me", os.getuid(), os.getgid())


class SampleRefused(UserError):
    """An expected error of the functions below."""

    code = "sample-refused"
    template = "no {what}"


class SampleBroken(NodeError):
    """An error that would drain the node."""

    code = "sample-broken"
    template = "broken"


def ids() -> list[int]:
    return [*os.getresuid(), *os.getresgid(), *os.getgroups()]


ERRORS: dict[str, BaseException] = {
    "expected": SampleRefused(what="tea"),
    "system": FileNotFoundError(errno.ENOENT, "No such file", "/nowhere"),
    "listing": OSError(errno.ESTALE, "Stale file handle", 7),  # of a directory that is listed by its descriptor
    "bug": ZeroDivisionError(),
    "node": SampleBroken(),
    "half": SampleRefused(),  # without the fields of its template
}


def fail(kind: str) -> list[str]:
    """Fail in the way that is asked for, or answer what the annotation does not say, or no JSON."""
    if kind == "death":
        os._exit(3)
    if kind == "type":
        return [1]  # type: ignore[list-item]
    if kind == "bytes":
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if int(name) > 2:
                    os.write(int(name), b"\0\0\0\2{]")
        return []
    raise ERRORS[kind]


def can_write(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def standard_streams() -> list[str]:
    """Return what the process's first three descriptors are."""
    return [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)]


def dawdle() -> None:
    """Take longer than anybody waits."""
    time.sleep(60)


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(ME, rooms=(__name__,)) as made:
        yield made


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("expected", SampleRefused, "no tea"),
        ("system", FileNotFoundError, "No such file"),
        ("listing", OSError, "Stale file handle"),
        ("bug", WorkerBug, "ZeroDivisionError"),
        # The child is less trusted than its parent: its message could not be made, and only the hook blames the node.
        ("half", WorkerAnswerMalformed, None),
        ("node", WorkerAnswerMalformed, None),
        ("type", WorkerAnswerMalformed, None),
        ("bytes", WorkerAnswerMalformed, None),
    ],
)
def test_an_error_arrives_as_what_it_is_and_anything_odd_is_refused(
    worker: Worker, kind: str, error: type[Exception], said: str | None
) -> None:
    with pytest.raises(error, match=said) as caught:
        worker.run(after(60), fail, kind)
    if isinstance(caught.value, OSError):  # a descriptor means nothing in another process
        assert (caught.value.filename or "") == ("/nowhere" if kind == "system" else "")


def test_a_call_ends_at_its_deadline_and_the_child_with_it(worker: Worker) -> None:
    with pytest.raises(WorkerSilent, match=r"^work as me: no answer"):
        worker.run(after(0.05), dawdle)
    assert worker.run(after(60), ids)[0] == ME.uid


def test_a_caller_does_something_else_until_it_wants_the_result() -> None:
    source, target = os.pipe()
    with Worker(ME, rooms=(__name__,), keep=[source]) as worker:
        result = worker.begin(after(60), length_read, source)
        os.write(target, b"four")
        assert result() == 4
        failing = worker.begin(after(60), fail, "expected")
        with pytest.raises(SampleRefused):
            failing()
    os.close(source)
    os.close(target)


def length_read(fd: int) -> int:
    return len(os.read(fd, 10))


def test_a_call_without_time_is_not_made(worker: Worker) -> None:
    """The error blames what came before it, not the file system; the child and what it holds stay."""
    child = worker.run(after(60), own_pid)
    with pytest.raises(WorkerSilent, match="no time was left to ask"):
        worker.run(after(0), fail, "death")
    assert worker.run(after(60), own_pid) == child


def own_pid() -> int:
    return os.getpid()


def test_a_function_of_another_room_does_not_run(worker: Worker) -> None:
    """Callers name functions; which may run as whom stands in the clients."""
    with pytest.raises(ValueError, match="posix:getppid may not run as me"):
        worker.run(after(60), os.getppid)
    with worker.another() as same, pytest.raises(ValueError, match="may not run as me"):
        same.look(after(60), os.getppid)


def test_a_users_stopped_child_is_told_apart() -> None:
    """Whose process it is, and not that a file system hangs; the next call has a new one."""
    with Worker(ME, rooms=(__name__,), real_uid=ME.uid) as worker:
        os.kill(worker.run(after(60), own_pid), signal.SIGSTOP)
        with pytest.raises(WorkerSilent, match=f"a signal has stopped the process of {ME.name}"):
            worker.run(after(0.2), ids)
        assert worker.run(after(60), ids)[0] == ME.uid


def test_a_dead_child_is_silent_and_replaced(worker: Worker) -> None:
    """A child that dies in a call is an error of the store's kind, not a hang."""
    with (
        Worker(ME, "the store /s", rooms=(__name__,)) as named,
        pytest.raises(WorkerSilent, match=r"^the store /s: .* died"),
    ):
        named.run(after(60), fail, "death")
    with pytest.raises(WorkerSilent, match="died"):
        worker.run(after(60), fail, "death")
    assert worker.run(after(60), ids)[0] == ME.uid


@pytest.mark.parametrize("function", ["os.pipe", "os.fork", "warmstart.host.worker.detach"])
def test_a_node_without_processes_or_descriptors_is_no_bug(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """Users can use them up; the next call tries again, and nothing stays open."""

    def fails() -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(function, fails)
        with pytest.raises(ProgramNotStarted, match="Too many open files"):
            worker.run(after(60), ids)
    worker.close()
    assert set(os.listdir("/proc/self/fd")) <= before  # garbage of other tests may be closed meanwhile
    assert worker.run(after(60), ids) == ids()


def test_a_process_with_many_descriptors_is_answered(worker: Worker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    many: list[int] = []
    try:
        many += (os.dup(0) for _ in range(1100))
        assert worker.run(after(60), ids) == ids()
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_only_kept_descriptors_reach_the_child(tmp_path: object) -> None:
    kept, other = os.open("/", os.O_RDONLY), os.open("/", os.O_RDONLY)
    try:
        with Worker(ME, rooms=(__name__,), keep=(kept,)) as worker:
            assert worker.run(after(60), can_write, kept)
            assert not worker.run(after(60), can_write, other)
    finally:
        os.close(kept)
        os.close(other)


def test_the_child_lets_go_of_the_hooks_output(worker: Worker) -> None:
    """Slurmd waits for whoever holds it, and a child that hangs on a dead file system can't be killed."""
    assert worker.run(after(60), standard_streams) == ["/dev/null"] * 3

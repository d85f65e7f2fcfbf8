"""A worker runs functions under another identity; its word is JSON, its silence an error."""

import errno
import fcntl
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib.processes import wait_until
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
        write_to_all(b"\0\0\0\2{]")
        return []
    raise ERRORS[kind]


def write_to_all(data: bytes) -> None:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) > 2:
                os.write(int(name), data)


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


WORKER = Worker(ME)


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
    kind: str, error: type[Exception], said: str | None
) -> None:
    with pytest.raises(error, match=said) as caught:
        WORKER.run(after(60), fail, kind)
    if isinstance(caught.value, OSError):  # a descriptor means nothing in another process
        assert (caught.value.filename or "") == ("/nowhere" if kind == "system" else "")


def test_a_call_ends_at_its_deadline_and_the_child_with_it() -> None:
    with pytest.raises(WorkerSilent, match=r"^work as me: no answer"):
        WORKER.run(after(0.05), dawdle)
    wait_until("the child's end", is_childless, 10)


def is_childless() -> bool:
    """Return whether this process has no child, reaping one that has ended."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def test_a_caller_does_something_else_until_it_wants_the_result() -> None:
    source, target = os.pipe()
    with WORKER.keeping(source).begin(after(60), length_read, source) as result:
        os.write(target, b"four")
        assert result(after(60)) == 4
    with WORKER.begin(after(60), fail, "expected") as failing, pytest.raises(SampleRefused):
        failing(after(60))
    os.close(source)
    os.close(target)


def length_read(fd: int) -> int:
    return len(os.read(fd, 10))


def numbers(go_on: int) -> Iterator[int]:
    """Say one, wait, say two, and fail."""
    yield 1
    yield len(os.read(go_on, 2))
    raise SampleRefused(what="tea")


def test_results_arrive_one_by_one() -> None:
    source, target = os.pipe()
    with WORKER.keeping(source).stream(after(60), numbers, source) as number:
        assert number(after(60)) == 1
        with pytest.raises(WorkerSilent):
            number(after(0.05))
        os.write(target, b"xx")
        assert number(after(60)) == 2
        with pytest.raises(SampleRefused):
            number(after(60))
    os.close(source)
    os.close(target)


def hold(path: str) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


def test_a_child_holds_its_locks_for_a_with_and_no_longer_than_its_caller_lives(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with WORKER.begin(after(60), hold, path) as held:
        assert held(after(60))
        with pytest.raises(BlockingIOError):
            WORKER.run(after(60), hold, path)
    assert WORKER.run(after(60), hold, path)
    told, telling = os.pipe()
    if not (caller := os.fork()):
        with WORKER.begin(after(60), hold, path) as held:
            held(after(60))
            os.write(telling, b".")
            time.sleep(60)
    os.read(told, 1)
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    with open(path, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits until the child has ended, too
    os.close(told)
    os.close(telling)


def test_a_call_without_time_is_not_made() -> None:
    """The error blames what came before it, not the file system."""
    with pytest.raises(WorkerSilent, match="no time was left to ask"):
        WORKER.run(after(0), fail, "death")


def stop_oneself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_stopped_child_is_told_apart() -> None:
    """Its user may have stopped it; no file system hangs."""
    with pytest.raises(WorkerSilent, match=f"a signal has stopped the process of {ME.name}"):
        WORKER.run(after(0.2), stop_oneself)


def test_a_child_that_dies_is_silent() -> None:
    """That is an error of the store's kind, not a hang."""
    with pytest.raises(WorkerSilent, match=r"^the store /s: .* died"):
        Worker(ME, "the store /s").run(after(60), fail, "death")


@pytest.mark.parametrize("function", ["os.pipe", "os.fork", "warmstart.host.worker.detach"])
def test_a_node_without_processes_or_descriptors_is_no_bug(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    """Users can use them up; the next call tries again, and nothing stays open."""

    def fails() -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(function, fails)
        with pytest.raises(ProgramNotStarted, match="Too many open files"):
            WORKER.run(after(60), ids)
    assert set(os.listdir("/proc/self/fd")) <= before  # garbage of other tests may be closed meanwhile
    assert WORKER.run(after(60), ids) == ids()


def test_a_process_with_many_descriptors_is_answered() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    many: list[int] = []
    try:
        many += (os.dup(0) for _ in range(1100))
        assert WORKER.run(after(60), ids) == ids()
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_only_kept_descriptors_reach_the_child(tmp_path: object) -> None:
    kept, other = os.open("/", os.O_RDONLY), os.open("/", os.O_RDONLY)
    try:
        worker = WORKER.keeping(kept)
        assert worker.run(after(60), can_write, kept)
        assert not worker.run(after(60), can_write, other)
    finally:
        os.close(kept)
        os.close(other)


def test_the_child_lets_go_of_the_hooks_output() -> None:
    """Slurmd waits for whoever holds it, and a child that hangs on a dead file system can't be killed."""
    assert WORKER.run(after(60), standard_streams) == ["/dev/null"] * 3

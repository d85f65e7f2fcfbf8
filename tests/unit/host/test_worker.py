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
from warmstart.host.identity import Identity, ProgramNotStarted, WorkerAnswerMalformed, WorkerSilent, WorkerStopped
from warmstart.host.worker import Worker, WorkerBug

ME = Identity("me", os.getuid(), os.getgid())


class SampleRefused(UserError):
    """An expected error of the functions below."""

    code = "sample-refused"
    template = "no {what}"


def ids() -> list[int]:
    return [*os.getresuid(), *os.getresgid(), *os.getgroups()]


def fail(kind: str) -> None:
    if kind == "expected":
        raise SampleRefused(what="tea")
    if kind == "system":
        raise FileNotFoundError(errno.ENOENT, "No such file", "/nowhere")
    if kind == "listing":
        raise OSError(errno.ESTALE, "Stale file handle", 7)
    if kind == "death":
        os._exit(3)
    raise ZeroDivisionError


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


def lie() -> list[str]:
    return [1]  # type: ignore[list-item]


class SampleBroken(NodeError):
    """An error that would drain the node."""

    code = "sample-broken"
    template = "broken"


def blame_the_node() -> None:
    raise SampleBroken


def babble() -> list[str]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) > 2:
                os.write(int(name), b"\0\0\0\2{]")
    return []


def raise_half_an_error() -> None:
    raise SampleRefused


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(ME, rooms=(__name__,)) as made:
        yield made


def test_expected_errors_arrive_as_what_they_are(worker: Worker) -> None:
    with pytest.raises(SampleRefused, match="no tea"):
        worker.run(after(5), fail, "expected")


def test_system_errors_keep_number_and_file(worker: Worker) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        worker.run(after(5), fail, "system")
    assert caught.value.filename == "/nowhere"


def test_a_descriptor_is_no_name(worker: Worker) -> None:
    """Of a directory listed by its descriptor; the number means nothing in another process."""
    with pytest.raises(OSError, match="Stale file handle") as caught:
        worker.run(after(5), fail, "listing")
    assert not caught.value.filename


def test_anything_else_is_a_bug_with_the_childs_traceback(worker: Worker) -> None:
    with pytest.raises(WorkerBug, match="ZeroDivisionError"):
        worker.run(after(5), fail, "bug")


def test_a_call_ends_at_its_deadline_and_the_child_with_it(worker: Worker) -> None:
    with pytest.raises(WorkerSilent, match=r"^work as me: no answer"):
        worker.run(after(0.05), dawdle)
    assert worker.run(after(5), ids)[0] == ME.uid


def test_a_caller_does_something_else_until_it_wants_the_result() -> None:
    source, target = os.pipe()
    with Worker(ME, rooms=(__name__,), keep=[source]) as worker:
        result = worker.begin(after(20), length_read, source)
        os.write(target, b"four")
        assert result() == 4
        failing = worker.begin(after(20), fail, "expected")
        with pytest.raises(SampleRefused):
            failing()
    os.close(source)
    os.close(target)


def length_read(fd: int) -> int:
    return len(os.read(fd, 10))


def test_a_call_without_time_is_not_made(worker: Worker) -> None:
    """The error blames what came before it, not the file system; the child and what it holds stay."""
    child = worker.run(after(5), own_pid)
    with pytest.raises(WorkerSilent, match="no time was left to ask"):
        worker.run(after(0), fail, "death")
    assert worker.run(after(5), own_pid) == child


def own_pid() -> int:
    return os.getpid()


def test_a_function_of_another_room_does_not_run(worker: Worker) -> None:
    """Callers name functions; which may run as whom stands in the clients."""
    with pytest.raises(ValueError, match="posix:getppid may not run as me"):
        worker.run(after(5), os.getppid)
    with worker.another() as same, pytest.raises(ValueError, match="may not run as me"):
        same.look(after(5), os.getppid)


def test_a_users_stopped_child_is_told_apart() -> None:
    """Whose process it is, and not that a file system hangs; the next call has a new one."""
    with Worker(ME, rooms=(__name__,), real_uid=ME.uid) as worker:
        os.kill(worker.run(after(5), own_pid), signal.SIGSTOP)
        with pytest.raises(WorkerStopped, match=f"the process of {ME.name} .* was stopped"):
            worker.run(after(0.2), ids)
        assert worker.run(after(5), ids)[0] == ME.uid


def test_a_dead_child_is_silent_and_replaced(worker: Worker) -> None:
    """A child that dies in a call is an error of the store's kind, not a hang."""
    with (
        Worker(ME, "the store /s", rooms=(__name__,)) as named,
        pytest.raises(WorkerSilent, match=r"^the store /s: .* died"),
    ):
        named.run(after(5), fail, "death")
    with pytest.raises(WorkerSilent, match="died"):
        worker.run(after(5), fail, "death")
    assert worker.run(after(5), ids)[0] == ME.uid


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
            worker.run(after(5), ids)
    worker.close()
    assert set(os.listdir("/proc/self/fd")) <= before  # garbage of other tests may be closed meanwhile
    assert worker.run(after(5), ids) == ids()


def test_a_process_with_many_descriptors_is_answered(worker: Worker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    many: list[int] = []
    try:
        many += (os.dup(0) for _ in range(1100))
        assert worker.run(after(5), ids) == ids()
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_only_kept_descriptors_reach_the_child(tmp_path: object) -> None:
    kept, other = os.open("/", os.O_RDONLY), os.open("/", os.O_RDONLY)
    try:
        with Worker(ME, rooms=(__name__,), keep=(kept,)) as worker:
            assert worker.run(after(5), can_write, kept)
            assert not worker.run(after(5), can_write, other)
    finally:
        os.close(kept)
        os.close(other)


def test_the_child_lets_go_of_the_hooks_output(worker: Worker) -> None:
    """Slurmd waits for whoever holds it, and a child that hangs on a dead file system can't be killed."""
    assert worker.run(after(5), standard_streams) == ["/dev/null"] * 3


def test_an_answer_of_another_type_is_refused(worker: Worker) -> None:
    with pytest.raises(WorkerAnswerMalformed):
        worker.run(after(5), lie)


def test_an_answer_that_is_no_json_is_refused(worker: Worker) -> None:
    with pytest.raises(WorkerAnswerMalformed):
        worker.run(after(5), babble)


def test_an_error_without_its_fields_is_refused(worker: Worker) -> None:
    """Its message could not be made, in the hook's own process."""
    with pytest.raises(WorkerAnswerMalformed):
        worker.run(after(5), raise_half_an_error)


def test_a_child_cannot_drain_the_node(worker: Worker) -> None:
    """Errors that blame the node are the hook's own to raise."""
    with pytest.raises(WorkerAnswerMalformed):
        worker.run(after(5), blame_the_node)

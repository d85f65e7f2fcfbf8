"""A job's user attacks what root runs under that user's uid: extraction and its worker (docs/threats.md, row 28).

Such a process is outside the job's cgroup, so whoever controls it runs outside the job's limits.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.lib.privileges import drop_to
from tests.lib.requirements import need_root_and_mksquashfs
from warmstart.caches.store.listing import Row
from warmstart.caches.store.look import Layer
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity, become
from warmstart.host.worker import Worker
from warmstart.seed.client import JobClient

pytestmark = pytest.mark.threat(28)
JOB = Identity("a job", 64201, 64201)
VALIDATOR = Identity("the validator", 64230, 64230)
SIZE = 256 << 20
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206


def reached(pid: int) -> list[str]:
    """Return how a process of the job's user can take over the process `pid`."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            drop_to(JOB.uid, JOB.gid)
            os.write(write, b" ".join(name.encode() for name, attack in ATTACKS.items() if attack(pid)))
            os.write(write, b".")
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read, "rb") as answers:
        answer = answers.read().decode()
    assert answer.endswith(".")
    return answer[:-1].split()


def _traced(request: int) -> Callable[[int], bool]:
    def attack(pid: int) -> bool:
        return bool(ctypes.CDLL(None).ptrace(request, pid, None, None) == 0)

    return attack


def _memory(pid: int) -> bool:
    with suppress(OSError):
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        return True
    return False


def _limits(pid: int) -> bool:
    size = ctypes.create_string_buffer(16)
    return bool(ctypes.CDLL(None).prlimit(pid, 7, size, None) == 0)  # 7: RLIMIT_NOFILE


def _descriptors(pid: int) -> bool:
    with suppress(OSError):
        return bool(os.listdir(f"/proc/{pid}/fd"))
    return False


ATTACKS = {
    "attach": _traced(PTRACE_ATTACH),
    "seize": _traced(PTRACE_SEIZE),
    "memory": _memory,
    "limits": _limits,
    "descriptors": _descriptors,
}


def get_pid() -> int:
    return os.getpid()


def make(cache: int) -> int:
    """Make a file in the cache; return its owner."""
    os.close(os.open("made", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=cache))
    return os.stat("made", dir_fd=cache).st_uid


@pytest.fixture
def cache(base: Path) -> Iterator[int]:
    (base / "cache").mkdir(0o700)
    os.chown(base / "cache", JOB.uid, JOB.gid)
    with opened_dir(str(base / "cache")) as fd:
        yield fd


def test_the_attacks_work_on_a_process_of_the_users_own() -> None:
    """The control: what the others refuse is possible where nothing refuses it."""
    process = subprocess.Popen(["/bin/sleep", "60"], user=JOB.uid, group=JOB.gid, extra_groups=[])
    try:
        assert set(reached(process.pid)) >= {"attach", "memory", "limits", "descriptors"}
    finally:
        process.kill()
        process.wait()


def test_extraction(base: Path, cache: int) -> None:
    need_root_and_mksquashfs()
    content = base / "content"
    content.mkdir()
    with open(content / "e.nbi", "wb") as file:
        file.truncate(SIZE)
    bundle = str(base / "bundle.sqsh")
    subprocess.run(["mksquashfs", str(content), bundle, "-quiet", "-no-progress", "-no-sparse"], check=True)
    row = Row("ab" * 32, os.path.getsize(bundle), 1, "a", 1, 7, 0)
    (base / f"{row.sha256}.sqsh").hardlink_to(bundle)
    (base / f"{row.sha256}.json").write_text("[]\n" + json.dumps({"e": {"e.nbi": [SIZE, "0" * 64, 17]}}))
    layer = Layer("user-1", row, ["e"])
    client = JobClient(cache, JOB, VALIDATOR)
    extraction = threading.Thread(target=client.unpack, args=(str(base), [layer], "numba", after(60)))
    extraction.start()
    pid = unsquashfs()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert reached(pid) == []
    finally:
        os.kill(pid, signal.SIGCONT)
        extraction.join()
    made = (base / "cache/numba/e.nbi").stat()
    assert (made.st_uid, made.st_gid, made.st_size) == (JOB.uid, JOB.gid, SIZE)


def unsquashfs() -> int:
    """Wait for the one that extracts for the job; return its id."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                text = Path(f"/proc/{name}/status").read_text()
                _, effective, *_ = text.partition("\nUid:\t")[2].split()
                if text.startswith("Name:\tunsquashfs\n") and effective == str(JOB.uid):
                    return int(name)
    raise AssertionError("no unsquashfs with the job's uid was seen")


def test_a_worker_under_the_jobs_uid(cache: int) -> None:
    """The process that restores times and rewrites paths; it works for the job and belongs to nobody."""
    worker = Worker(JOB, keep=(cache,), take=partial(become, real_uid=VALIDATOR.uid))
    assert worker.run(after(60), make, cache) == JOB.uid
    with worker.begin(after(60), get_pid) as pid:
        assert reached(pid(after(60))) == []

"""Journals become lines of the audit log: none lost, all whole, bounded and of one shape, whatever a journal holds."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.journals import FIELDS, NO_PROCESS, finished, left, lines
from warmstart.audit import pending, sink
from warmstart.audit.line import LONGEST_VALUE, ORDER
from warmstart.audit.sink import AuditUnwritable, flush
from warmstart.host import files
from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir


def test_a_finished_journal_becomes_lines_of_one_shape(journal_dir: str, log: Path) -> None:
    finished(journal_dir, image="docker://registry/app:1")
    assert flush(journal_dir, str(log)) == 2
    first, last = lines(log)
    assert list(first) == [*ORDER, "image"]
    assert (first["schema"], first["event"], first["job_id"]) == (1, "image.imported", 7)
    assert len(first["ts"]) == len("2026-01-31T09:30:00.250Z")
    assert first["ts"].endswith("Z")
    assert (last["event"], last["outcome"]) == ("hook.finished", "ok")
    assert os.listdir(journal_dir) == []


def test_log_and_directory_are_made_for_root_and_its_group(journal_dir: str, log: Path) -> None:
    finished(journal_dir)
    before = os.umask(0o077)
    try:
        flush(journal_dir, str(log))
    finally:
        os.umask(before)
    assert [oct(path.stat().st_mode & 0o7777) for path in (log.parent, log)] == ["0o750", "0o640"]


def test_an_existing_directory_keeps_its_mode(journal_dir: str, tmp_path: Path) -> None:
    """A log in /var/log does not take /var/log away from everybody else."""
    tmp_path.chmod(0o755)
    finished(journal_dir)
    flush(journal_dir, str(tmp_path / "audit.jsonl"))
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_nothing_to_move_makes_no_log(journal_dir: str, log: Path) -> None:
    assert flush(journal_dir, str(log)) == 0
    os.makedirs(journal_dir)
    assert flush(journal_dir, str(log)) == 0
    assert not log.parent.exists()


def test_another_process_with_the_same_pid_is_not_the_hook(journal_dir: str, log: Path) -> None:
    path = left(journal_dir, b'{"ts": 1, "event": "hook.started"}\n', f"prolog-0a1b2c3d-{os.getpid()}.open")
    assert flush(journal_dir, str(log)) == 0  # too fresh to tell
    os.utime(path, (0, 0))
    assert flush(journal_dir, str(log)) == 2


def test_a_killed_hooks_journal_is_moved_and_says_so(journal_dir: str, log: Path) -> None:
    code = (
        "import sys, time; from warmstart.audit.journal import Journal; from warmstart.audit import events\n"
        f"Journal({journal_dir!r}, {FIELDS!r}).emit(events.HOOK_STARTED); print('up', flush=True); time.sleep(60)"
    )
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        alive = flush(journal_dir, str(log))
        process.send_signal(signal.SIGKILL)
    assert alive == 0
    assert flush(journal_dir, str(log)) == 2
    started, crashed = lines(log)
    assert started["event"] == "hook.started"
    assert (crashed["event"], crashed["reason"], crashed["job_id"]) == ("hook.crashed", "killed", 7)


def test_a_full_disk_keeps_the_journal(journal_dir: str, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails in the middle loses nothing: the next flush mends the line and moves it all."""
    finished(journal_dir)
    real = os.write

    def full(fd: int, data: bytes) -> int:
        return real(fd, data[:10])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(AuditUnwritable, match="No space left"):
            flush(journal_dir, str(log))
    assert len(os.listdir(journal_dir)) == 1
    assert flush(journal_dir, str(log)) == 2
    broken, *whole = log.read_bytes().splitlines()
    assert len(broken) == 10
    assert [json.loads(line)["event"] for line in whole] == ["image.imported", "hook.finished"]


def test_a_failed_sync_keeps_the_journal(journal_dir: str, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(journal_dir)
    flush(journal_dir, str(log))  # makes the log and its directory
    finished(journal_dir)

    def broken(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(AuditUnwritable, match="Input/output error"):
        flush(journal_dir, str(log))
    assert len(os.listdir(journal_dir)) == 1


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo"])
def test_a_log_that_is_no_plain_file_of_ours_is_refused(journal_dir: str, log: Path, kind: str) -> None:
    finished(journal_dir)
    log.parent.mkdir()
    victim = log.parent / "victim"
    victim.write_bytes(b"")
    if kind == "link":
        log.symlink_to(victim)
    elif kind == "hard link":
        log.hardlink_to(victim)
    else:
        os.mkfifo(log)
    with pytest.raises(AuditUnwritable):
        flush(journal_dir, str(log))
    assert victim.read_bytes() == b""
    assert len(os.listdir(journal_dir)) == 1


def test_other_files_in_the_journal_directory_are_left(journal_dir: str, log: Path) -> None:
    names = ["readme", "prolog-aa-1.other", "prolog-bb-1.done", "prolog-cc-1.done"]
    os.makedirs(os.path.join(journal_dir, names[2]))
    os.symlink("/etc/hostname", os.path.join(journal_dir, names[3]))
    for name in names[:2]:
        left(journal_dir, b"x\n", name)
    assert flush(journal_dir, str(log)) == 0
    assert sorted(os.listdir(journal_dir)) == sorted(names)


def test_lock_of_another_flush_delays_but_never_prevents(
    journal_dir: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "LOCK_WAIT", 0.01)
    finished(journal_dir)
    with opened_dir(journal_dir) as holder:
        assert files.try_flock(holder)
        assert flush(journal_dir, str(log)) == 2


@pytest.mark.threat(22)
def test_readers_of_the_log_hold_up_no_flush(journal_dir: str, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site may let users read the log, and whoever can open a file can lock it; the journals' directory is 0700."""
    locked = []
    real = files.wait_flock

    def wait_flock(fd: int, deadline: Deadline) -> bool:
        locked.append(os.fstat(fd).st_ino)
        return real(fd, deadline)

    monkeypatch.setattr(files, "wait_flock", wait_flock)
    finished(journal_dir)
    assert flush(journal_dir, str(log)) == 2
    assert locked == [os.stat(journal_dir).st_ino]
    assert os.stat(journal_dir).st_mode & 0o777 == 0o700


def test_work_that_exceeds_the_budget_waits(journal_dir: str, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog never holds a node: what the budget leaves is the next hook's."""
    finished(journal_dir)
    monkeypatch.setattr(sink, "BUDGET", 0.0)
    assert flush(journal_dir, str(log)) == 0
    assert len(os.listdir(journal_dir)) == 1


# What a journal holds reaches the log whole, bounded and harmless, whatever it is.


def test_a_half_written_line_is_kept_as_damaged(journal_dir: str, log: Path) -> None:
    whole = json.dumps({"ts": 1.5, "event": "hook.started", **FIELDS}).encode()
    left(journal_dir, whole + b'\n{"ts": 2, "event": "image.imp', "epilog-ff-1.done")
    flush(journal_dir, str(log))
    started, damaged = lines(log)
    assert started["ts"] == "1970-01-01T00:00:01.500Z"
    assert damaged["event"] == "journal.damaged"
    assert damaged["text"] == '{"ts": 2, "event": "image.imp'
    assert (damaged["bytes"], damaged["job_id"], damaged["hook"]) == (29, 7, "prolog")


@pytest.mark.threat(20)
def test_control_characters_are_visible_and_no_line_can_be_faked(journal_dir: str, log: Path) -> None:
    finished(journal_dir, image="a\x1b[2J\n\u202eb\x9b", **{"k\x07": ["\x7f"]})
    flush(journal_dir, str(log))
    first = lines(log)[0]
    assert first["image"] == r"a\x1b[2J\n\u202eb\x9b"
    assert first[r"k\x07"] == [r"\x7f"]
    assert log.read_bytes().isascii()


def test_a_journal_of_any_size_is_bounded(journal_dir: str, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "LONGEST_JOURNAL", 36)
    left(journal_dir, b'{"ts": 1, "event": "hook.finished"}\n' * 3, "prolog-ab-1.done")
    flush(journal_dir, str(log))
    kept, damaged = lines(log)
    assert kept["event"] == "hook.finished"
    assert (damaged["event"], damaged["bytes"]) == ("journal.damaged", 72)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


EVENT = st.builds(
    lambda fields, ts: {**fields, "ts": ts, "event": "step.finished"},
    st.dictionaries(st.text() | st.sampled_from([*ORDER, "self", "fields"]), JSON),
    st.floats(0, 4e9),
)


RAW = st.one_of(
    st.binary(),
    EVENT.map(lambda event: json.dumps(event).encode()),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"[" * 100_000, b'{"ts": 1e999, "event": ""}', b'{"ts":1,"event":"e","v":1e999}', b"\xff" * 9000]),
)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """Return one directory for all examples of a property."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@given(st.lists(RAW, max_size=8), st.sampled_from(["open", "done"]))
@settings(max_examples=60)
def test_any_bytes_become_valid_lines_and_none_is_lost(scratch: Path, raw: list[bytes], state: str) -> None:
    log, journal_dir = scratch / "audit.jsonl", str(scratch / "journal")
    log.unlink(missing_ok=True)
    left(journal_dir, b"\n".join(raw), f"prolog-ab-{NO_PROCESS}.{state}")
    count = flush(journal_dir, str(log))
    expected = [line for line in b"\n".join(raw).split(b"\n") if line.strip()]
    found = lines(log)
    crashed = state == "open"  # no example says hook.finished
    assert count == len(found) == len(expected) + crashed
    for line in found:
        assert line["schema"] == 1
        assert all(len(json.dumps(value)) < 12 * LONGEST_VALUE for value in line.values())
    assert os.listdir(journal_dir) == []

"""A program's lines in the log: whole, root's alone, and never a reason to fail. Syslog has what the log refuses."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.lib.audit_lines import FIELDS, finished, lines
from warmstart.audit import events
from warmstart.audit.line import LONGEST
from warmstart.audit.log import Log
from warmstart.audit.rendering import ProgramLog
from warmstart.errors import NodeError, PolicyError, ResourceError


class Missing(ResourceError):
    """What a job's user may know."""

    code = "sample-missing"
    template = "no {what}"
    hint = "get one"


class Broken(NodeError):
    """The node's fault."""

    code = "sample-broken"
    template = "the disk is broken"


class Wrong(PolicyError):
    """The policy's fault."""

    code = "sample-wrong"
    template = "the policy is wrong"


def received(service: socket.socket) -> list[dict[str, Any]]:
    """Return the lines that syslog has got."""
    service.setblocking(False)
    found = []
    while True:
        try:
            found.append(json.loads(service.recv(1 << 16).partition(b"]: ")[2]))
        except BlockingIOError:
            return found


def test_the_last_line_has_all_that_was_done(log: Path) -> None:
    audit = Log(str(log), FIELDS)
    audit.begin()
    step = audit.bind(step="seed")
    step.put("caches", "triton", warm=True, entries=12)
    step.put("caches", "triton", ms=3.5)
    step.put("caches", "jax", warm=False, cold="nothing-published")
    step.add("images", image="a", how="reused")
    step.remark("a bundle was refused", "triton", bundle="b")
    step.failed(error := Missing(what="room"))
    audit.failed(error, degree="refused")  # is told by whoever decides on it, too
    audit.say(head=True)
    audit.finish(outcome="ok", status=0, duration_ms=1.5)
    begun, ended = lines(log)
    assert (begun["event"], begun["schema"]) == ("hook.started", 1)
    assert [*begun] == [
        "schema",
        "ts",
        "event",
        "hook",
        "run_id",
        "cluster",
        "node",
        "job_id",
        "uid",
        "user",
    ]
    assert (ended["event"], ended["outcome"], ended["head"]) == ("hook.finished", "ok", True)
    assert ended["caches"] == {
        "triton": {"warm": True, "entries": 12, "ms": 3.5},
        "jax": {"warm": False, "cold": "nothing-published"},
    }
    assert ended["images"] == [{"image": "a", "how": "reused"}]
    assert ended["remarks"] == [{"step": "seed", "about": "triton", "text": "a bundle was refused", "bundle": "b"}]
    (failure,) = ended["failures"]
    assert failure == {"step": "seed", **error.as_audit(), "degree": "refused"}
    assert "step" not in ended


def test_what_is_done_for_another_job_has_a_line_of_its_own(log: Path) -> None:
    audit = ProgramLog(str(log), FIELDS)
    other, nothing = (audit.for_job(job_id=job, user="b", uid=2) for job in (8, 9))
    other.put("caches", "numba", entries=1)
    other.bind(step="harvest").emit(events.HARVEST_DROPPED, reason="x")
    for done in (other, nothing, audit):
        done.finish(outcome="ok")
    dropped, harvest, own = lines(log)
    doer = {"hook": "prolog", "job_id": 7, "uid": 64201, "user": "a"}
    assert (dropped["job_id"], dropped["done_by"], dropped["user"]) == (8, doer, "b")
    assert (harvest["event"], harvest["job_id"], harvest["caches"]) == (
        "harvest.finished",
        8,
        {"numba": {"entries": 1}},
    )
    assert (own["event"], own["job_id"], "caches" in own) == ("hook.finished", 7, False)


def test_a_user_reads_nothing_of_the_node_and_the_policy(log: Path) -> None:
    audit = Log(str(log), FIELDS)
    audit.begin()
    for error in (Broken(), Wrong(), Missing(what="room")):
        audit.failed(error)
    audit.say(rules=["secret"], traceback="secret", head=True)
    audit.emit(events.NODE_DRAINED, error=Broken().as_audit())
    audit.for_job(job_id=8).say(facts="secret")
    begun, so_far = map(json.loads, audit.bind(step="environment").shown(outcome="ok").splitlines())
    assert begun == lines(log)[0]
    assert [failure["code"] for failure in so_far["failures"]] == ["sample-missing"]
    assert (so_far["event"], so_far["outcome"], so_far["head"]) == ("hook.finished", "ok", True)
    assert "secret" not in json.dumps(so_far)
    assert "step" not in so_far


def test_it_is_made_for_root_and_the_logs_group(log: Path) -> None:
    before = os.umask(0o077)
    try:
        finished(log)
    finally:
        os.umask(before)
    assert (stat.S_IMODE(log.stat().st_mode), stat.S_IMODE(log.parent.stat().st_mode)) == (0o640, 0o750)


def test_it_may_be_rotated_while_a_hook_works(log: Path) -> None:
    audit = Log(str(log), FIELDS)
    audit.begin()
    log.rename(older := log.with_suffix(".jsonl.1"))
    audit.finish(outcome="ok")
    assert [line["event"] for path in (older, log) for line in lines(path)] == ["hook.started", "hook.finished"]


def _write(log: Path, writer: int) -> None:
    for number in range(200):
        Log(str(log), {"hook": "prolog", "writer": writer, "text": "x" * (number * 37 % 7000)}).begin()


def test_no_line_of_several_programs_is_torn(log: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        for done in [pool.submit(_write, log, writer) for writer in range(4)]:
            done.result()
    found = [json.loads(line) for line in log.read_bytes().splitlines() if line]
    assert sorted(line["writer"] for line in found) == [writer for writer in range(4) for _ in range(200)]


def test_a_torn_line_tears_no_other(log: Path) -> None:
    finished(log)
    with log.open("ab") as file:
        file.write(b'{"schema":1,"ts":"2026')
    finished(log)
    *_, torn, begun, ended = log.read_bytes().splitlines()
    assert torn == b'{"schema":1,"ts":"2026'
    assert [json.loads(line)["event"] for line in (begun, ended)] == ["hook.started", "hook.finished"]


@pytest.mark.parametrize("is_written", [True, False])
def test_a_short_write_is_completed_or_told(
    log: Path, service: socket.socket, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    real = os.write

    def short(fd: int, data: bytes) -> int:
        if len(data) > 20:
            return real(fd, data[: len(data) - 20])
        if not is_written:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", short)
    Log(str(log), FIELDS).finish(outcome="ok")
    monkeypatch.undo()
    sent = received(service)
    assert len(sent) == (not is_written)
    finished(log)
    assert len([line for line in log.read_bytes().splitlines() if line.endswith(b"}")]) == 2 + is_written


def _link(log: Path) -> None:
    (log.parent / "other").touch()
    log.symlink_to(log.parent / "other")


def _made(log: Path, mode: int) -> None:
    log.touch()
    log.chmod(mode)


def _second_name(log: Path) -> None:
    log.touch()
    os.link(log, log.parent / "other")


REFUSED: dict[str, Callable[[Path], object]] = {
    "a link": _link,
    "a second name": _second_name,
    "a directory": lambda log: log.mkdir(),
    "a FIFO": os.mkfifo,
    "others can write it": lambda log: _made(log, 0o666),
    "its group can write it": lambda log: _made(log, 0o660),
    "others can write its directory": lambda log: log.parent.chmod(0o757),
    "its directory is sticky": lambda log: log.parent.chmod(0o1777),
}


@pytest.mark.threat(20)
@pytest.mark.parametrize("case", REFUSED)
def test_a_log_that_others_can_change_is_refused(
    log: Path, service: socket.socket, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """Each line goes to syslog once, and to stderr; nothing is written elsewhere."""
    log.parent.mkdir(0o755)
    REFUSED[case](log)
    finished(log)
    assert [line["event"] for line in received(service)] == ["hook.started", "hook.finished"]
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith(f"warmstart: audit log {log}: ") for line in said] == [True] * 2
    assert [path.name for path in log.parent.iterdir() if path.is_file() and path.stat().st_size] == []


def test_where_syslog_is_away_too_nothing_fails(log: Path) -> None:
    log.parent.mkdir()
    log.mkdir()
    finished(log)


def test_syslog_has_each_line_if_the_policy_says_so(log: Path, service: socket.socket) -> None:
    finished(log, syslog=True)
    head = re.fullmatch(
        r"<30>[A-Z][a-z]{2} [ 1-3]\d \d\d:\d\d:\d\d warmstart\[\d+\]: (.*)", service.recv(1 << 16).decode()
    )
    assert head
    assert [json.loads(head[1]), *received(service)] == lines(log)


def test_hooks_and_programs_write_the_same(log: Path) -> None:
    for kind in (Log, ProgramLog):
        audit = kind(str(log), FIELDS)
        audit.say(told={"a": {"b": "é\x1b"}}, n=1.5, nothing=None, long=["x" * 1000] * 20)
        audit.finish(outcome="ok")
    of_hook, of_program = (re.sub(rb'"ts":"[^"]*"', b"", line) for line in log.read_bytes().splitlines())
    assert of_hook == of_program
    assert len(of_hook) < LONGEST

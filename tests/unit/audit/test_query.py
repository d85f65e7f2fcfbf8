"""The log is read back whole: with its rotated files, however often reading goes on, and whatever stands in it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.audit.query import AuditLog, LineFilter

ALL = LineFilter()
A = {"ts": "2026-01-01T00:00:00.000Z", "event": "image.imported", "job_id": 7, "node": "n1", "uid": 5, "user": "a"}
B = {"ts": "2026-01-02T00:00:00.000Z", "event": "image.waited", "job_id": 8, "node": "n2", "uid": 6, "outcome": "ok"}
C = {"ts": "2026-01-03T00:00:00.000Z", "event": "step.failed", "job_id": 7, "node": "n2", "uid": 5, "user": "a"}


def written(*events: dict[str, object]) -> bytes:
    """Return lines of a log."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def found(path: Path, where: LineFilter = ALL) -> list[object]:
    return [line["ts"] for line in AuditLog([str(path)]).lines(where)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (LineFilter(), [A, B, C]),
        (LineFilter(job=7), [A, C]),
        (LineFilter(node="n2"), [B, C]),
        (LineFilter(event="image.*"), [A, B]),
        (LineFilter(event="image.waited"), [B]),
        (LineFilter(event="*.failed"), [C]),
        (LineFilter(outcome="ok"), [B]),
        (LineFilter(event="image"), []),
        (LineFilter(user="a"), [A, C]),
        (LineFilter(user="6"), [B]),
        (LineFilter(since="2026-01-02T00:00:00.000Z"), [B, C]),
        (LineFilter(until="2026-01-02T00:00:00.000Z"), [A, B]),
        (LineFilter(job=7, node="n2"), [C]),
    ],
)
def test_each_filter_matches_what_it_says(tmp_path: Path, where: LineFilter, expected: list[dict[str, object]]) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_bytes(written(A, B, C))
    assert found(log, where) == [event["ts"] for event in expected]


def test_rotated_files_come_first_packed_or_not(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_bytes(written(C))
    (tmp_path / "audit.jsonl-20260101.gz").write_bytes(gzip.compress(written(A)))
    (tmp_path / "audit.jsonl.1").write_bytes(written(B))
    (tmp_path / "audit.jsonl.bak").write_bytes(written(B, B))
    os.utime(tmp_path / "audit.jsonl-20260101.gz", (1, 1))
    os.utime(tmp_path / "audit.jsonl.1", (2, 2))
    assert found(log) == [A["ts"], B["ts"], C["ts"]]


def test_broken_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_bytes(written(A) + b'{"ts": \n[1]\n\xff\n' + written(B) + b'{"ts"')
    packed = gzip.compress(written(C) * 1000)
    (tmp_path / "audit.jsonl.1.gz").write_bytes(packed[: len(packed) // 2])
    reader = AuditLog([str(log)])
    assert [line["ts"] for line in reader.lines(LineFilter(job=7, node="n1"))] == [A["ts"]]
    assert reader.broken == 4  # the last line may yet be completed


@given(st.binary())
def test_any_file_is_read_without_harm(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    log = tmp_path_factory.mktemp("log") / "audit.jsonl"
    log.write_bytes(content + b'\n{"event": "x", "image": "\\u001b[2J\\u009b"}\n')
    *_, last = AuditLog([str(log)]).lines(ALL)
    assert last["image"] == r"\x1b[2J\x9b"


def test_a_directory_stands_for_all_logs_in_it(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "audit.jsonl").write_bytes(written(B))
    (tmp_path / "n1" / "audit.jsonl.1.gz").write_bytes(gzip.compress(written(A)))
    (tmp_path / "n2.jsonl").write_bytes(written(C))
    (tmp_path / "notes.txt").write_bytes(written(C, C))
    assert found(tmp_path) == [A["ts"], B["ts"], C["ts"]]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty"):
        list(AuditLog([str(tmp_path), str(tmp_path / "empty")]).lines(ALL))


def test_reading_goes_on_where_it_ended_even_after_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_bytes(written(A) + written(B)[:20])
    reader = AuditLog([str(log)])
    assert [line["ts"] for line in reader.lines(ALL)] == [A["ts"]]
    log.write_bytes(written(A, B))
    log.rename(tmp_path / "audit.jsonl.1")
    os.utime(tmp_path / "audit.jsonl.1", (1, 1))
    log.write_bytes(written(C))
    later = AuditLog([str(log)], positions=reader.positions)
    assert [line["ts"] for line in later.lines(ALL)] == [B["ts"], C["ts"]]
    assert list(later.lines(ALL)) == []


def test_a_log_that_became_shorter_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_bytes(written(A, B))
    reader = AuditLog([str(log)])
    assert len(list(reader.lines(ALL))) == 2
    log.write_bytes(written(C))
    assert [line["ts"] for line in reader.lines(ALL)] == [C["ts"]]


def test_following_yields_each_line_when_it_is_written(tmp_path: Path) -> None:
    log, waited = tmp_path / "audit.jsonl", iter(range(9))
    log.write_bytes(written(A))

    def wait(_seconds: float) -> None:
        if next(waited) == 0:
            log.rename(tmp_path / "audit.jsonl.1")  # and the next hook makes another one later
        else:
            log.write_bytes(written(B))

    lines = AuditLog([str(log)]).follow(ALL, wait)
    assert [next(lines)["event"] for _ in range(2)] == ["image.imported", "image.waited"]


def test_a_torn_line_is_passed_over_once_the_next_writer_has_ended_it(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_bytes(written(A) + b'{"ts": "2026')
    reader = AuditLog([str(log)])
    assert len([*reader.lines(ALL)]) == 1
    with log.open("ab") as file:
        file.write(b"\n" + written(B))
    assert [line["ts"] for line in reader.lines(ALL)] == [B["ts"]]
    assert reader.broken == 1


def test_old_files_are_not_opened_for_newer_lines(tmp_path: Path) -> None:
    """A rotated file that was last written before --since holds nothing newer."""
    log = tmp_path / "audit.jsonl"
    log.write_bytes(written(C))
    (tmp_path / "audit.jsonl.1").write_bytes(b"broken\n")
    os.utime(tmp_path / "audit.jsonl.1", (1, 1))
    reader = AuditLog([str(log)])
    assert len(list(reader.lines(LineFilter(since="2026-01-01T00:00:00.000Z")))) == 1
    assert reader.broken == 0

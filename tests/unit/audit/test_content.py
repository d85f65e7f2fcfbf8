"""What a journal holds reaches the log whole, bounded and harmless, whatever it is."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.journals import FIELDS, NO_PROCESS, finished, left, lines
from warmstart.audit import waiting
from warmstart.audit.line import LONGEST_VALUE, ORDER
from warmstart.audit.sink import flush


def test_a_half_written_line_is_kept_as_damaged(journal_dir: str, log: Path) -> None:
    """What a full disk cut off is in the log as text, with the job that it belongs to."""
    whole = json.dumps({"ts": 1.5, "event": "hook.started", **FIELDS}).encode()
    left(journal_dir, whole + b'\n{"ts": 2, "event": "image.imp', "epilog-ff-1.done")
    flush(journal_dir, str(log))
    started, damaged = lines(log)
    assert started["ts"] == "1970-01-01T00:00:01.500Z"
    assert damaged["event"] == "journal.damaged"
    assert damaged["text"] == '{"ts": 2, "event": "image.imp'
    assert (damaged["bytes"], damaged["job_id"], damaged["hook"]) == (29, 7, "prolog")


def test_a_journal_of_zeros_tells_its_hook_from_its_name(journal_dir: str, log: Path) -> None:
    """After a power loss a file may hold zeros; hook and run are still in its name."""
    left(journal_dir, bytes(100), "prolog-slurmctld-ff-1.done")
    flush(journal_dir, str(log))
    (damaged,) = lines(log)
    assert (damaged["hook"], damaged["run_id"], damaged["bytes"]) == ("prolog-slurmctld", "ff", 100)


def test_control_characters_are_visible_and_no_line_can_be_faked(journal_dir: str, log: Path) -> None:
    """Escapes, bidi marks and newlines in users' text reach nobody's terminal, not even by `jq -r`."""
    finished(journal_dir, image="a\x1b[2J\n\u202eb\x9b", **{"k\x07": ["\x7f"]})
    flush(journal_dir, str(log))
    first = lines(log)[0]
    assert first["image"] == r"a\x1b[2J\n\u202eb\x9b"
    assert first[r"k\x07"] == [r"\x7f"]
    assert log.read_bytes().isascii()


def test_a_traceback_keeps_its_lines(journal_dir: str, log: Path) -> None:
    """A bug report is read by people."""
    finished(journal_dir, traceback="Traceback:\n\tboom\x1b")
    flush(journal_dir, str(log))
    assert lines(log)[0]["traceback"] == "Traceback:\n\tboom\\x1b"


def test_long_values_are_cut_with_a_mark(journal_dir: str, log: Path) -> None:
    """No value is longer than 4 KiB or so; a text keeps its beginning and its end."""
    wide = {"names": ["x" * 100] * 1000, "map": {f"{n:0100}": n for n in range(1000)}}
    finished(journal_dir, text="a" * 10**6 + "end", number=10**400, **wide, **{f"key{n}": n for n in range(200)})
    flush(journal_dir, str(log))
    first = lines(log)[0]
    assert first["text"].startswith("aaa")
    assert first["text"].endswith("end")
    assert "[cut: 995907 characters]" in first["text"]
    assert first["names"][-1].startswith("[cut: ")
    assert first["map"]["[cut]"].endswith(" more")
    assert isinstance(first["number"], str)
    assert first["[cut]"].endswith(" more")
    assert all(len(json.dumps(value)) < 2 * LONGEST_VALUE for value in first.values())


def test_a_journal_of_any_size_is_bounded(journal_dir: str, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond the largest journal is counted, not read."""
    monkeypatch.setattr(waiting, "LONGEST_JOURNAL", 36)
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
@settings(max_examples=200, deadline=None)
def test_any_bytes_become_valid_lines_and_none_is_lost(scratch: Path, raw: list[bytes], state: str) -> None:
    """Whatever a journal holds: one JSON line for each of its lines, in order, and the journal is gone."""
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

"""A hook's own journal: on disk when `emit` returns, and never a reason to fail."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.journals import FIELDS
from warmstart.audit import events
from warmstart.audit.journal import DONE, OPEN, Journal

NAME = f"prolog-0a1b2c3d-{os.getpid()}"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just(Path("/x")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_an_event_is_on_disk_at_once(journal_dir: str) -> None:
    journal = Journal(journal_dir, FIELDS)
    journal.emit(events.IMAGE_REUSED, image="a")
    journal.bind(step="image").bind(user="b").emit(events.IMAGE_REUSED, image="c")
    journal.emit(events.IMAGE_REUSED)
    first, second, third = lines(Path(journal_dir, NAME + OPEN))
    assert (first["event"], first["image"], first["job_id"], first["user"]) == ("image.reused", "a", 7, "a")
    assert (second["step"], second["user"], second["image"]) == ("image", "b", "c")
    assert "step" not in third
    journal.finish(outcome="ok")


def test_root_alone_reads_it(journal_dir: str) -> None:
    Journal(journal_dir, FIELDS).finish()
    assert stat.S_IMODE(os.stat(journal_dir).st_mode) == 0o700
    assert stat.S_IMODE(Path(journal_dir, NAME + DONE).stat().st_mode) == 0o600


def test_a_finished_journal_is_handed_over(journal_dir: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    journal = Journal(journal_dir, FIELDS)
    journal.finish(outcome="ok", duration_ms=1.5)
    assert os.listdir(journal_dir) == [NAME + DONE]
    (event,) = lines(Path(journal_dir, NAME + DONE))
    assert (event["event"], event["outcome"], event["duration_ms"]) == ("hook.finished", "ok", 1.5)
    assert len(os.listdir("/proc/self/fd")) == before


@given(st.dictionaries(st.text(min_size=1).filter(lambda key: key not in ("event", "ts", "self")), VALUES, max_size=4))
def test_any_fields_make_one_line(journal_dir: str, fields: dict[str, object]) -> None:
    journal = Journal(journal_dir, FIELDS)
    path = Path(journal_dir, NAME + OPEN)
    before = len(path.read_bytes().splitlines())
    journal.bind(**fields).emit(events.IMAGE_REUSED)
    found = lines(path)
    assert len(found) == before + 1
    assert found[-1] == {
        **FIELDS, **json.loads(json.dumps(fields, default=str)), "ts": found[-1]["ts"], "event": "image.reused"
    }  # fmt: skip
    os.close(journal._fd)


@pytest.mark.threat(17)
def test_a_job_is_shown_its_own_events(journal_dir: str) -> None:
    """What concerns other jobs, the node or the policy is not shown, and no half line."""
    journal = Journal(journal_dir, FIELDS)
    for event in (events.HOOK_STARTED, events.IMAGE_EVICTED, events.POLICY_REJECTED, events.CACHE_SEEDED):
        journal.emit(event)
    other = {"job_id": 8, "uid": 2002, "user": "bob", "cluster": json.dumps(FIELDS)}
    journal.for_job(**other).emit(events.BUNDLE_PUBLISHED)
    os.write(journal._fd, b'{"ts": 1, "event": "hook.st')
    shown = [json.loads(line)["event"] for line in journal.shown_to_job().splitlines()]
    assert shown == ["hook.started", "cache.seeded"]
    assert journal.bind(step="seed").shown_to_job() == journal.shown_to_job()
    journal.finish(outcome="ok")
    assert journal.shown_to_job() == ""


def test_a_directory_that_can_not_be_used_fails_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    journal = Journal(f"{tmp_path}/file", FIELDS)
    journal.emit(events.IMAGE_REUSED, image="a")
    journal.finish(outcome="ok")
    told = capsys.readouterr().err
    assert "Not a directory" in told
    assert '"event": "image.reused"' in told
    assert '"event": "hook.finished"' in told


def test_a_link_in_its_place_is_not_followed(journal_dir: str, tmp_path: Path) -> None:
    os.mkdir(journal_dir)
    Path(journal_dir, NAME + OPEN).symlink_to(tmp_path / "elsewhere")
    Journal(journal_dir, FIELDS).emit(events.IMAGE_REUSED)
    assert not (tmp_path / "elsewhere").exists()

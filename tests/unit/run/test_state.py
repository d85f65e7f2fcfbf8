"""The record survives crashes, foreign formats and two hooks at once."""

import errno
import json
import os
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib.left_runs import damage, runs_left
from tests.lib.runs import a_policy, a_record
from warmstart import plan
from warmstart.errors import WarmstartError
from warmstart.harvest import deferred
from warmstart.harvest.deferred import HARVESTS, DeferredHarvest
from warmstart.host.deadline import after
from warmstart.host.files import FileSystemBroken
from warmstart.paths import NodePaths
from warmstart.run import state as records
from warmstart.run.state import CacheSet, JobBusy, Record, RecordUnreadable, Seeded, SeededBundle, StateFull


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = a_record(
        seeded={"numba": Seeded("ab12", [SeededBundle("site", "b", "ab", ["x", "y"])])}, images={"a:1": "/i"}
    )
    with records.job_lock(str(tmp_path), 7, after(1)):
        records.save(str(tmp_path), written)
    assert records.load(str(tmp_path), 7) == written
    assert (tmp_path / "7").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "7" / "record.json").stat().st_mode & 0o777 == 0o600


SET = CacheSet("0a1b2c3d", "c0ffee00", "sha256:" + "ab" * 32, seeded={"numba": Seeded("ab12")})


def test_each_set_has_a_file_of_its_own(tmp_path: Path) -> None:
    state, written = str(tmp_path), a_record(image="sha256:" + "cd" * 32)
    with records.job_lock(state, 7, after(1)):
        records.save(state, written)
        for other in (SET, SET._replace(key="11111111", run_id="ffffffff")):
            records.save_set(state, 7, other)
        found = records.load(state, 7)
        assert found == written._replace(sets=[SET])
        records.save(state, found)
        assert json.loads((tmp_path / "7" / "record.json").read_bytes())["sets"] == []
        records.save_set(state, 7, SET._replace(key="22222222"))
        (tmp_path / "7" / "set-33333333.json").write_text('{"format":1,"key":7}')  # costs the others nothing
        assert [other.key for other in _sets_of(state)] == ["22222222", "c0ffee00"]
        records.forget_set(state, 7, SET._replace(key="22222222"))
        assert _sets_of(state) == [SET]
        records.forget(state, 7)
    assert os.listdir(state) == []


def _sets_of(state: str) -> list[CacheSet]:
    found = records.load(state, 7)
    assert found
    return found.sets


def test_the_record_of_a_set_is_the_runs_with_other_caches() -> None:
    making = SET._replace(key="11111111", seeded={})
    run = a_record(
        seeded={"triton": Seeded("cd34")}, deferred=["triton"], sets=[SET._replace(deferred=["numba"]), making]
    )
    first, second = run.each()
    assert (first, second.seeded, second.sets, second.uid) == (run, SET.seeded, [], run.uid)
    assert second.set_directory == f"{run.run_directory}/sets/c0ffee00"
    assert (first.set_directory, second.set_name) == (run.run_directory, "7.0a1b2c3d.c0ffee00")
    assert run.left == ["triton", "numba"]
    assert {*CacheSet._fields} - {"nodes"} < {*Record._fields}
    assert records.decode("", records.encode(run)) == run


def test_a_record_of_an_earlier_release_has_no_cache(tmp_path: Path) -> None:
    """It lacks the field: its run is released as ever, and nothing of it is harvested."""
    written = json.loads(
        records.encode(a_record(cache="/c", seeded={"numba": Seeded("ab12", [SeededBundle("site", "b", "ab", ["x"])])}))
    )
    del written["cache"]
    found = records.decode("record.json", json.dumps(written).encode())
    assert found == a_record(seeded={"numba": Seeded("ab12", [SeededBundle("site", "b", "ab", ["x"])])})
    found = found._replace(head=True, publish_scope="user-1-a")
    assert [step.name for step in plan.epilog(a_policy(tmp_path), found)] == ["release", "spool"]


def test_a_second_hook_of_the_job_waits_no_longer_than_its_deadline(tmp_path: Path) -> None:
    with (
        records.job_lock(str(tmp_path), 7, after(1)),
        pytest.raises(JobBusy, match="job 7"),
        records.job_lock(str(tmp_path), 7, after(0.05)),
    ):
        pytest.fail("two hooks hold one job")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1}', '{"format": 99}', "\x00", '{"seeded": 3, "format": 1}']
)
def test_a_damaged_record_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "record.json").write_text(text)
    with pytest.raises(RecordUnreadable, match=r"record\.json"):
        records.load(str(tmp_path), 7)


@pytest.mark.parametrize(("number", "expected"), [(errno.EIO, FileSystemBroken), (errno.EMFILE, StateFull)])
@pytest.mark.parametrize("function", ["opened_dir", "read_small", "is_at"])
def test_state_that_cannot_be_read_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int, expected: type[WarmstartError]
) -> None:
    def fails(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    with records.job_lock(str(tmp_path), 7, after(1)):
        records.save(str(tmp_path), a_record())
    monkeypatch.setattr(records, function, fails)
    with pytest.raises(expected), records.job_lock(str(tmp_path), 7, after(1)):
        records.load(str(tmp_path), 7)


@pytest.mark.threat(15)
def test_no_record_is_written_that_could_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length is a user's to choose (names of entries): the job goes on with the one before, and is cleaned up."""
    before = a_record()
    long = before._replace(seeded={"numba": Seeded("ab12", [SeededBundle("site", "b", "ab", ["x" * 100])])})
    monkeypatch.setattr(records, "LONGEST", len(records.encode(long)) - 1)
    with records.job_lock(str(tmp_path), 7, after(1)):
        records.save(str(tmp_path), before)
        with pytest.raises(StateFull, match="record"):
            records.save(str(tmp_path), long)
        assert records.load(str(tmp_path), 7) == before
        (tmp_path / "7" / "record.json").write_bytes(records.encode(long))
        with pytest.raises(RecordUnreadable, match="larger"):
            records.load(str(tmp_path), 7)


def test_the_longest_record_can_be_deferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written down within another file there, and longer for that; a longer one is one damaged run, no more."""
    long = a_record(seeded={"numba": Seeded("ab12", [SeededBundle("site", "b", "ab", ['"'] * 1000)])})
    monkeypatch.setattr(records, "LONGEST", len(records.encode(long)))
    node = NodePaths(str(tmp_path), "")
    deferred.defer(node, HARVESTS, long, 1.5)
    assert runs_left(node, HARVESTS) == [DeferredHarvest(long.run_name, 1.5, long)]
    os.truncate(damage(node, HARVESTS, "8.0a1b2c3d"), records.LONGEST * 3)
    assert runs_left(node, HARVESTS) == [
        DeferredHarvest("8.0a1b2c3d", 0.0, None),
        DeferredHarvest(long.run_name, 1.5, long),
    ]

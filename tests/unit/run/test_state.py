"""A run's state survives crashes, foreign formats and two hooks at once."""

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib.runs import a_run, changed
from warmstart.ending import waiting
from warmstart.ending.waiting import ENDINGS
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.files import FileSystemBroken
from warmstart.paths import NodePaths
from warmstart.queue import Queue
from warmstart.run import state as runs
from warmstart.run.state import Caches, JobBusy, RunUnreadable, Seeded, SeededBundle, StateFull

OTHER = Caches("c0ffee00", "sha256:" + "ab" * 32, seeded={"numba": Seeded("ab12")})


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    own = {"numba": Seeded("ab12", [SeededBundle("site", "ab", ["x", "y"])])}
    written = a_run(seeded=own, images={"a:1": "/i"}, others=[OTHER])
    with runs.job_lock(str(tmp_path), 7, after(1)):
        runs.save(str(tmp_path), written)
    assert runs.load(str(tmp_path), 7) == written
    assert (tmp_path / "7").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "7" / "run.json").stat().st_mode & 0o777 == 0o600


def test_what_a_run_says_of_its_caches() -> None:
    run = a_run(seeded={"triton": Seeded("cd34")}, left=["triton"], others=[OTHER._replace(left=["numba"])])
    first, second = run.caches
    assert (first, second.seeded) == (run.own, OTHER.seeded)
    assert run.directory_of(second) == f"{run.directory}/caches/c0ffee00"
    assert run.directory_of(first) == run.directory
    assert run.left == ["triton", "numba"]


@pytest.mark.parametrize(("node", "leads"), [("n1", (True, False)), ("n2", (False, True)), ("n3", (False, False))])
def test_the_first_node_of_all_and_of_those_that_agree_on_caches(node: str, leads: tuple[bool, bool]) -> None:
    run = a_run(node=node, nodelist="n[1-3]")
    assert (run.head, run.leads(OTHER._replace(nodes="n[2-3]"))) == leads


def test_a_second_hook_of_the_job_waits_no_longer_than_its_deadline(tmp_path: Path) -> None:
    with (
        runs.job_lock(str(tmp_path), 7, after(1)),
        pytest.raises(JobBusy, match="job 7"),
        runs.job_lock(str(tmp_path), 7, after(0.05)),
    ):
        pytest.fail("two hooks hold one job")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1}', '{"format": 99}', "\x00", '{"seeded": 3, "format": 1}']
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "run.json").write_text(text)
    with pytest.raises(RunUnreadable, match=r"run\.json"):
        runs.load(str(tmp_path), 7)


@pytest.mark.parametrize(("number", "expected"), [(errno.EIO, FileSystemBroken), (errno.EMFILE, StateFull)])
@pytest.mark.parametrize("function", ["opened_dir", "read_small", "is_at"])
def test_state_that_cannot_be_read_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int, expected: type[WarmstartError]
) -> None:
    def fails(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    with runs.job_lock(str(tmp_path), 7, after(1)):
        runs.save(str(tmp_path), a_run())
    monkeypatch.setattr(runs, function, fails)
    with pytest.raises(expected), runs.job_lock(str(tmp_path), 7, after(1)):
        runs.load(str(tmp_path), 7)


@pytest.mark.threat(15)
def test_nothing_is_written_that_could_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length is a user's to choose (names of entries): the job goes on with the one before, and is cleaned up."""
    before = a_run()
    long = changed(before, seeded={"numba": Seeded("ab12", [SeededBundle("site", "ab", ["x" * 100])])})
    monkeypatch.setattr(runs, "LONGEST", len(runs.encode(long)) - 1)
    with runs.job_lock(str(tmp_path), 7, after(1)):
        runs.save(str(tmp_path), before)
        with pytest.raises(StateFull, match="bytes"):
            runs.save(str(tmp_path), long)
        assert runs.load(str(tmp_path), 7) == before


def test_the_longest_run_can_be_deferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written down within another file there, and longer for that; a longer one is one damaged run, no more."""
    long = a_run(seeded={"numba": Seeded("ab12", [SeededBundle("site", "ab", ['"'] * 1000)])})
    monkeypatch.setattr(runs, "LONGEST", len(runs.encode(long)))
    node = NodePaths(str(tmp_path), str(tmp_path), "")
    queue = Queue(node, ENDINGS)
    item = waiting.leave(queue, long, is_done=False)
    found = waiting.read(queue, item)
    assert found
    assert found[1] == long
    os.truncate(f"{queue.directory}/{item.name}", runs.LONGEST * 3)
    assert waiting.read(queue, item) is None

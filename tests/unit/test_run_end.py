"""Runs end in one order: whoever dies on the way leaves nothing unknown, and ending a run twice changes nothing."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.lib.faults import dies
from tests.lib.left_runs import damage, runs_left
from tests.lib.privileges import make_removable
from tests.lib.runs import a_context, a_policy, changed, events, ran, result
from warmstart import errand, run_end, view
from warmstart.errand import Errands, at_work
from warmstart.harvest import deferred
from warmstart.harvest.deferred import HARVESTS, REMOVALS
from warmstart.host import detached, files
from warmstart.host.deadline import Deadline, after
from warmstart.run import state as run_state
from warmstart.run.state import JobBusy, Run
from warmstart.run_end import Ending, Orphan, WorkspaceBusy
from warmstart.steps import release, workspace
from warmstart.steps.contract import Context
from warmstart.store.layout import StoreFailed

SOON = 10.0
MARK = ".of-7.0a1b2c3d"
ALL = [MARK, "cache", "cache/numba", "cache/numba/code", "shown", "tmp", "tmp/mine"]


class Runs:
    """Runs of one job on a node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.context: Context = a_context(root)
        self.paths = self.context.paths
        self.workspace = root / "workspace"

    def make(self, **changes: object) -> Ending:
        """Make a run with a workspace, a view and a record."""
        record = changed(self.context.run, **changes)
        state = f"{self.paths.state}/{record.job_id}"
        os.makedirs(state, mode=0o700, exist_ok=True)
        made = workspace.run(self.context._replace(run=record), workspace.Options(("numba",)))
        record = record._replace(apart=ran(made).apart)
        run_state.save(self.paths.state, record)
        for path in ("tmp/mine", "cache/numba/code"):
            Path(record.directory, path).write_text("x")
        (self.workspace / f"import.{record.run_id}.0123").mkdir()
        view.publish(self.paths.view, record, {"environment": "x"})
        make_removable(f"{self.paths.view}/{record.view_id}")
        return Ending(self.context.policy, self.paths, record, self.context.audit, self.context.store)

    def recorded(self, job_id: int = 7) -> Run | None:
        return run_state.load(self.paths.state, job_id)

    def left(self) -> list[str]:
        """Return what there is of runs on the node."""
        return sorted([*os.listdir(self.workspace), *os.listdir(self.paths.view), *self.deferred()])

    def deferred(self) -> list[str]:
        """Return the runs that maintenance is to finish."""
        return [item.name for item in runs_left(self.paths, HARVESTS)]

    def waiting(self) -> list[str]:
        """Return the runs whose removal goes on off the clock."""
        return [item.name for item in runs_left(self.paths, REMOVALS)]

    def events(self, name: str) -> list[dict[str, object]]:
        return events(self.context, name)

    def result(self) -> dict[str, Any]:
        """Return what the hook's last line would have."""
        return result(self.context)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    """Give runs below the test's directory, on a disk with space."""
    monkeypatch.setattr(deferred, "is_short_of_space", lambda _workspace: False)
    made = Runs(tmp_path)
    yield made
    made.context.store.close()


def tree(root: str) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in Path(root).rglob("*"))


def released(ending: Ending) -> None:
    """End a run as its epilog does."""
    assert run_end.release(ending, after(SOON)) == []


def superseded(ending: Ending) -> None:
    """End a run as the prolog of the requeued job does."""
    run_end.supersede(ending, after(SOON))


def undone(ending: Ending) -> None:
    """End a run as a prolog that failed."""
    run_end.undo(ending, after(SOON))


WAYS: dict[str, Callable[[Ending], None]] = {"release": released, "supersede": superseded, "undo": undone}


@pytest.mark.parametrize("way", sorted(WAYS))
def test_nothing_is_left_of_a_run(runs: Runs, way: str) -> None:
    ending = runs.make()
    for _ in range(2):
        WAYS[way](ending)
        assert (runs.left(), runs.recorded()) == ([], None)
    assert "failures" not in runs.result()


@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_run_is_known_until_it_is_gone(runs: Runs, way: str) -> None:
    for turn in count(1):
        ending = runs.make(run_id=f"{turn:08x}")
        died = dies(partial(WAYS[way], ending), turn, runs.root)
        there = os.path.exists(f"{ending.run.directory}/cache") or os.path.exists(f"{runs.paths.view}/7")
        assert not there or runs.recorded() == ending.run
        WAYS[way](ending)
        assert (runs.left(), runs.recorded()) == ([], None)
        if not died:
            break
    assert turn > 10


@pytest.fixture
def busy_disk(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Have no time to remove anything at once; return what is started instead."""
    started: list[list[str]] = []
    monkeypatch.setattr(run_end, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(detached, "start", lambda argv, **_: started.append(argv))
    return started


@pytest.mark.parametrize("way", sorted(WAYS))
def test_what_takes_long_to_remove_is_left_to_the_background(runs: Runs, busy_disk: list[list[str]], way: str) -> None:
    ending = runs.make()
    WAYS[way](ending)
    name = ending.run.name
    going = [f".{name}", "import.0a1b2c3d.0123"]
    assert (runs.left(), runs.recorded(), runs.waiting()) == (going, None, [name])
    assert tree(f"{runs.workspace}/.{name}") == ALL
    assert stat.S_IMODE((runs.workspace / f".{name}").stat().st_mode) == 0o700
    assert busy_disk == [["/nowhere/background", "removals", "node"]]
    assert "failures" not in runs.result()
    (item,) = runs_left(runs.paths, REMOVALS)
    assert item.run is not None
    other = runs.make(run_id="ffffffff")
    assert not run_end.finish_removal(runs.paths, item.run, after(0))
    assert run_end.finish_removal(runs.paths, item.run, after(SOON))
    assert (runs.left(), runs.waiting()) == (["7", "7.00000000", "import.ffffffff.0123"], [])
    assert runs.recorded() == other.run


@pytest.mark.threat(21)
def test_only_roots_own_directory_is_moved(
    runs: Runs, busy_disk: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users set the project ids of theirs, which rename(2) then refuses to move (EXDEV on XFS and ext4)."""
    real = os.rename

    def rename(source: str, target: str, **where: int) -> None:
        if source in {"cache", "tmp"}:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, target, **where)

    monkeypatch.setattr(os, "rename", rename)
    ending = runs.make()
    released(ending)
    assert tree(f"{runs.workspace}/.{ending.run.name}") == ALL
    assert run_end.finish_removal(runs.paths, ending.run, after(SOON))
    assert runs.left() == []


@pytest.mark.threat(43)
@pytest.mark.parametrize("why", ["number", "space"])
def test_not_everything_may_wait_to_be_removed(
    runs: Runs, busy_disk: list[list[str]], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    most = REMOVALS.most if why == "number" else 0
    if why == "space":
        monkeypatch.setattr(deferred, "is_short_of_space", lambda _workspace: True)
    for number in range(1, most + 2):
        released(runs.make(job_id=number, view_id=number, run_id=f"{number:08x}"))
    assert len(runs.waiting()) == len(busy_disk) == most
    assert [name for name in os.listdir(runs.workspace) if not name.startswith((".", "import."))] == []
    other = runs.make(job_id=99, view_id=99, run_id="0000ffff")
    released(other._replace(run=other.run._replace(uid=other.run.uid + 1)))
    assert len(runs.waiting()) == most + (why == "number")


def test_a_disk_that_does_not_move_it_removes_it_where_it_is(
    runs: Runs, busy_disk: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name stays, and is no orphan's."""
    ending = runs.make()

    def refuses(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuses)
        patch.setattr(errand, "replace_file", written)
        released(ending)
    (name,) = runs.waiting()
    assert Path(ending.run.directory, "tmp/mine").exists()
    orphan = Orphan(str(runs.workspace), ending.run.place, 7, name)
    assert not run_end.end_orphan(runs.paths, orphan, lambda _: True)
    assert run_end.finish_removal(runs.paths, ending.run, after(SOON))
    assert runs.left() == []


def written(dir_fd: int, name: str, data: bytes, mode: int) -> None:
    """Write a file at once, without a rename."""
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode, dir_fd=dir_fd)
    os.write(fd, data)
    os.close(fd)


def test_a_run_that_cannot_be_removed_is_still_known(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = runs.make()
    with monkeypatch.context() as patch:
        patch.setattr(run_end, "remove_tree", fails)
        (failure,) = run_end.release(ending, after(SOON))
        assert isinstance(failure, WorkspaceBusy)
        run_end.supersede(ending, after(SOON))
        undone(ending)
    assert (os.listdir(runs.paths.view), runs.recorded()) == ([], ending.run)
    result = runs.result()
    assert [failure["step"] for failure in result["failures"]] == ["release", "release"]
    (remark,) = result["remarks"]
    assert (remark["about"], "was requeued" in remark["text"]) == (ending.run.run_id, True)
    released(ending)
    assert (runs.left(), runs.recorded()) == ([], None)


@pytest.mark.threat(21)
@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_view_that_cannot_be_removed_costs_nothing_else(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    ending = runs.make(topics=["test.7.0/caches"])
    with monkeypatch.context() as patch:
        patch.setattr(view, "remove_tree", fails)
        if way == "release":
            outcome = release.run(runs.context._replace(run=ending.run), release.Options())
            assert [type(failure) for failure in outcome.degraded] == [WorkspaceBusy, StoreFailed]
        else:
            WAYS[way](ending)
            assert [failure["step"] for failure in runs.result()["failures"]] == ["release", "release"]
    assert (runs.left(), runs.recorded()) == (["7"], ending.run)
    released(ending._replace(run=ending.run._replace(topics=[])))
    assert (runs.left(), runs.recorded()) == ([], None)


@pytest.mark.threat(21)
def test_one_deferred_harvest_that_cannot_be_dropped_costs_no_other(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = a_policy(runs.root)
    policy = policy._replace(harvest=policy.harvest._replace(deferred=1))
    for number in (1, 2):
        record = runs.make(job_id=number, view_id=number, run_id=f"{number:08x}", left=["numba"]).run
        deferred.defer(runs.paths, HARVESTS, record, float(number))
        run_state.forget(runs.paths.state, number)
    real = files.remove_tree

    def remove_tree(dir_fd: int, name: str, deadline: Deadline) -> None:
        if name == ".1.00000001":
            fails()
        real(dir_fd, name, deadline)

    monkeypatch.setattr(run_end, "remove_tree", remove_tree)
    ending = runs.make(left=["numba"])._replace(policy=policy)
    assert [type(failure) for failure in run_end.release(ending, after(SOON))] == [WorkspaceBusy]
    assert (runs.deferred(), runs.recorded()) == (["1.00000001", "7.0a1b2c3d"], None)


def fails(*_: object) -> None:
    """Remove nothing, since something is held."""
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


@pytest.mark.parametrize("way", sorted(WAYS))
def test_only_this_run_ends(runs: Runs, way: str) -> None:
    other = runs.make(run_id="ffffffff", restarts=1)
    ending = runs.make()
    for _ in range(2):
        WAYS[way](ending)
    assert sorted(os.listdir(runs.workspace)) == [other.run.place, "import.ffffffff.0123"]
    assert tree(other.run.directory) == [other.run.mark, *ALL[1:]]


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize("died", [False, True])
def test_what_was_at_its_place_before_it_stays(runs: Runs, way: str, died: bool) -> None:
    """Of an earlier job of that id: the run has a name of its own, or died before it had one."""
    other = runs.make(run_id="ffffffff").run
    before = [other.mark, *ALL[1:]]
    ending = runs.make()
    assert tree(other.directory) == before
    assert ending.run.place == ending.run.name != other.place
    if died:
        shutil.rmtree(ending.run.directory)
        ending = ending._replace(run=ending.run._replace(apart=False))
    for left in ([], ["numba"]):
        WAYS[way](ending._replace(run=changed(ending.run, left=left)))
        run_end.finish_deferred(runs.paths, ending.run, after(SOON))
    assert not os.path.exists(f"{runs.workspace}/{ending.run.name}")
    assert tree(other.directory) == before
    assert stat.S_IMODE(os.stat(other.directory).st_mode) == 0o711


def test_a_deferred_harvest_leaves_the_cache(runs: Runs) -> None:
    ending = runs.make(left=["numba"])
    released(ending)
    run = Path(ending.run.directory)
    assert (tree(str(run)), stat.S_IMODE(run.stat().st_mode)) == (
        [MARK, "cache", "cache/numba", "cache/numba/code", "shown"],
        0o700,
    )
    assert (runs.left(), runs.recorded()) == ([run.name, ending.run.name], None)
    for _ in range(2):
        assert run_end.finish_deferred(runs.paths, ending.run, after(SOON)) == []
        assert runs.left() == []


def test_finishing_leaves_the_jobs_next_run_alone(runs: Runs) -> None:
    first = runs.make(left=["numba"])
    released(first)
    second = runs.make(run_id="ffffffff", restarts=1)
    run_end.finish_deferred(runs.paths, first.run, after(SOON))
    assert runs.left() == ["7", "7.00000001", "import.ffffffff.0123"]
    assert runs.recorded() == second.run


def test_the_oldest_deferred_harvests_make_room(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = a_policy(runs.root)
    policy = policy._replace(harvest=policy.harvest._replace(deferred=2))
    for number in (1, 2, 3):
        released(
            runs.make(job_id=number, view_id=number, run_id=f"{number:08x}", left=["numba"])._replace(policy=policy)
        )
    assert sorted(os.listdir(runs.workspace)) == ["2.00000000", "3.00000000"]
    assert runs.deferred() == ["2.00000002", "3.00000003"]
    answers = iter([True, False])
    monkeypatch.setattr(deferred, "is_short_of_space", lambda _workspace: next(answers))
    damage(runs.paths, HARVESTS, "9.00000009")
    released(runs.make(left=["numba"])._replace(policy=policy))
    assert [(event["run"], event["reason"], event["profiles"]) for event in runs.events("harvest.dropped")] == [
        ("1.00000001", deferred.NO_ROOM, ["numba"]),
        ("9.00000009", deferred.NO_ROOM, []),
        ("2.00000002", deferred.NO_ROOM, ["numba"]),
        ("3.00000003", deferred.NO_SPACE, ["numba"]),
    ]
    assert [event["job_id"] for event in runs.events("harvest.dropped")] == [1, 9, 2, 3]  # whose they are
    assert runs.left() == ["7.00000000", "7.0a1b2c3d"]


def test_nothing_is_dropped_while_maintenance_is_at_it(runs: Runs) -> None:
    policy = a_policy(runs.root)
    policy = policy._replace(harvest=policy.harvest._replace(deferred=0))
    with at_work(runs.paths, HARVESTS.name) as is_ours:
        assert is_ours
        released(runs.make(left=["numba"])._replace(policy=policy))
    assert runs.deferred() == ["7.0a1b2c3d"]


class Orphans:
    """A run's directory that maintenance found."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.run = runs.make().run
        run_state.forget(runs.paths.state, 7)

    def end(self, *, is_over: bool) -> bool:
        """End it; return whether it was removed."""
        record = self.run
        orphan = Orphan(str(self.runs.workspace), record.place, record.job_id, record.name)
        removed = run_end.end_orphan(self.runs.paths, orphan, lambda _job_id: is_over)
        assert removed is not os.path.exists(orphan.path)
        return removed


@pytest.fixture
def orphan(runs: Runs) -> Orphans:
    """Give a run without a record."""
    return Orphans(runs)


def test_an_orphan_goes_when_its_job_is_over_for_sure(orphan: Orphans) -> None:
    assert not orphan.end(is_over=False)
    assert orphan.end(is_over=True)
    assert orphan.runs.recorded() is None


def test_an_orphan_of_an_earlier_run_goes_while_the_job_runs(orphan: Orphans) -> None:
    orphan.runs.make(run_id="ffffffff", restarts=1)
    assert orphan.end(is_over=False)


def test_what_something_names_is_no_orphan(orphan: Orphans) -> None:
    paths, record = orphan.runs.paths, orphan.run
    state = Path(paths.state, "7")
    state.mkdir(mode=0o700, exist_ok=True)
    run_state.save(paths.state, record)
    assert not orphan.end(is_over=True)
    (state / run_state.NAME).write_text("{")
    assert not orphan.end(is_over=True)
    run_state.forget(paths.state, 7)
    deferred.defer(paths, HARVESTS, record, time.time())
    assert not orphan.end(is_over=True)
    Errands(paths, HARVESTS).drop(record.name)
    with run_state.job_lock(paths.state, 7, after(0)), pytest.raises(JobBusy):
        orphan.end(is_over=True)
    assert orphan.end(is_over=True)


@pytest.mark.threat(27)
def test_nobody_drops_the_deferred_harvests_of_others(runs: Runs) -> None:
    policy = runs.context.policy
    limited = policy._replace(harvest=policy.harvest._replace(deferred=3))
    for job_id, uid in ((1, 11), (2, 22), (3, 22), (4, 22), (5, 22)):
        ending = runs.make(job_id=job_id, view_id=job_id, uid=os.getuid(), left=["numba"])
        record = ending.run._replace(uid=uid)
        run_end.defer(ending._replace(policy=limited, run=record), after(SOON), [])
    assert runs.deferred() == ["1.0a1b2c3d", "4.0a1b2c3d", "5.0a1b2c3d"]

"""Runs end in one order: whoever dies on the way leaves nothing unknown, and ending a run twice changes nothing."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.lib.faults import dies
from tests.lib.privileges import make_removable
from tests.lib.runs import a_context, changed, events, ran, result
from warmstart import view
from warmstart.attempts import endings
from warmstart.ending import release, removal, waiting
from warmstart.ending.removal import WorkspaceBusy
from warmstart.ending.waiting import ENDINGS
from warmstart.host import detached
from warmstart.host.deadline import after
from warmstart.host.remove import remove_tree
from warmstart.paths import Installation
from warmstart.queue import DONE, LATER, MORE, Outcome, Queue
from warmstart.run import state as run_state
from warmstart.run.state import Run, Seeded
from warmstart.session import Session
from warmstart.steps import harvest, workspace
from warmstart.steps.contract import Context
from warmstart.steps.harvest import Harvested, Options
from warmstart.store.layout import StoreFailed

SOON = 10.0
MARK = ".of-7.0a1b2c3d"
ALL = [MARK, "cache", "cache/numba", "cache/numba/code", "shown", "tmp", "tmp/mine"]
CLOSED = [MARK, "cache", "cache/numba", "cache/numba/code", "shown"]
NO_TIME = Options(0)


class Runs:
    """Runs of one job on a node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.context: Context = a_context(root)
        self.paths = self.context.paths
        self.workspace = root / "workspace"
        self.queue = Queue(self.paths, ENDINGS)

    def make(self, **changes: object) -> Run:
        """Make a run with a workspace and a view; return its state."""
        run = changed(self.context.run, publish_scope="user-1-a", seeded={"numba": Seeded("ns", [])}, **changes)
        os.makedirs(f"{self.paths.state}/{run.job_id}", mode=0o700, exist_ok=True)
        run = run._replace(apart=ran(workspace.run(self._of(run), workspace.Options(("numba",)))).apart)
        run_state.save(self.paths.state, run)
        for path in ("tmp/mine", "cache/numba/code"):
            Path(run.directory, path).write_text("x")
        view.publish(self.paths.view, run, {"environment": "x"})
        make_removable(f"{self.paths.view}/{run.view_id}")
        return run

    def _of(self, run: Run) -> Context:
        return self.context._replace(run=run, deadline=after(SOON))

    def end(self, run: Run, options: Options | None = None) -> release.Ended:
        """End a run as hooks do: an epilog has options."""
        return release.release(self._of(run), options)

    def attempt(self, name: str) -> Outcome:
        """Make an attempt at what waits, as the background does."""
        here = self._of(self.context.run)
        session = Session(Installation(str(self.root)), here.policy, here.paths, "n1", here.audit, "", here.store, [])
        item = self.queue.find(name)
        assert item
        outcome = endings.attempt(session, item)
        if outcome == DONE:
            self.queue.drop(name)
        return outcome

    def saved(self, job_id: int = 7) -> Run | None:
        return run_state.load(self.paths.state, job_id)

    def left(self) -> list[str]:
        """Return what there is of runs on the node."""
        return sorted([*os.listdir(self.workspace), *os.listdir(self.paths.view), *self.waiting()])

    def waiting(self) -> list[str]:
        """Return the runs that wait."""
        return sorted(item.key for item in self.queue.all())

    def to_harvest(self) -> list[str]:
        """Return the runs that wait to be harvested."""
        found = {item.key: waiting.read(self.queue, item) for item in self.queue.all()}
        return sorted(key for key, one in found.items() if one and not one[0].is_done)

    def limit(self, number: int) -> None:
        """Let so many runs wait."""
        policy = self.context.policy
        self.context = self.context._replace(policy=policy._replace(harvest=policy.harvest._replace(waiting=number)))

    def events(self, name: str) -> list[dict[str, object]]:
        return events(self.context, name)

    def result(self) -> dict[str, Any]:
        """Return what the hook's last line would have."""
        return result(self.context)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Give runs below the test's directory, on a disk with space. No program is started."""
    monkeypatch.setattr(waiting, "is_short_of_space", lambda _workspace: False)
    monkeypatch.setattr(detached, "start", lambda *_, **__: None)
    return Runs(tmp_path)


def tree(root: str) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in Path(root).rglob("*"))


def released(runs: Runs, run: Run) -> None:
    """End a run as an epilog that has time, but no store to speak of."""
    runs.end(run, None)


def harvested(runs: Runs, run: Run) -> None:
    """End a run as its epilog does."""
    runs.end(run, Options(SOON))


WAYS: dict[str, Callable[[Runs, Run], None]] = {"epilog": harvested, "supersede": released}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have harvests that are done at once."""
    monkeypatch.setattr(harvest, "run", lambda context, _: Harvested(context.run, is_done=True, degraded=[]))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("way", sorted(WAYS))
def test_nothing_is_left_of_a_run(runs: Runs, way: str) -> None:
    run = runs.make()
    for _ in range(2):
        WAYS[way](runs, run)
        assert (runs.left(), runs.saved()) == ([], None)
    assert "failures" not in runs.result()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_run_is_known_until_it_is_gone(runs: Runs, way: str) -> None:
    for turn in count(1):
        run = runs.make(run_id=f"{turn:08x}")
        died = dies(partial(WAYS[way], runs, run), turn, runs.root)
        places = (f"{run.directory}/cache", f"{runs.workspace}/{run.going}", f"{runs.paths.view}/7")
        assert not any(map(os.path.exists, places)) or runs.saved() == run or runs.waiting() == [run.name]
        WAYS[way](runs, run)
        for name in runs.waiting():
            assert runs.attempt(name) == DONE
        assert (runs.left(), runs.saved()) == ([], None)
        if not died:
            break
    assert turn > 10


def test_a_run_that_waits_is_known_until_it_is_gone(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever dies at it; and its harvest is never repeated once the removal has begun."""
    for turn in count(1):
        run = runs.make(run_id=f"{turn:08x}")
        runs.end(run, NO_TIME)
        with monkeypatch.context() as patch:
            patch.setattr(harvest, "harvest", done_where_all_is_there)
            died = dies(partial(runs.attempt, run.name), turn, runs.root)
            assert runs.waiting() == [run.name] or not os.path.exists(f"{runs.workspace}/{run.going}")
            for name in runs.waiting():
                assert runs.attempt(name) == DONE
        assert (runs.left(), runs.saved()) == ([], None)
        if not died:
            break
    assert turn > 10


def done_where_all_is_there(context: Context, *_: object) -> Harvested:
    """Harvest a run, of which nothing may be missing."""
    run = context.run
    assert {name.partition("/")[0] for name in tree(run.directory)} == {run.mark, "cache", "shown"}
    assert Path(run.directory, "cache/numba/code").exists()
    return Harvested(changed(run, left=[]), is_done=True, degraded=[])


@pytest.fixture
def busy_disk(monkeypatch: pytest.MonkeyPatch, runs: Runs) -> list[list[str]]:
    """Have no time to remove anything at once; return what is started instead."""
    started: list[list[str]] = []
    monkeypatch.setattr(release, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(detached, "start", lambda argv, **_: started.append(argv))
    return started


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("way", sorted(WAYS))
def test_what_takes_long_to_remove_is_left_to_the_queue(runs: Runs, busy_disk: list[list[str]], way: str) -> None:
    run = runs.make()
    WAYS[way](runs, run)
    going = [f".{run.name}", run.name]
    assert (runs.left(), runs.saved()) == (sorted(going), None)
    assert tree(f"{runs.workspace}/.{run.name}") == ALL
    assert stat.S_IMODE((runs.workspace / f".{run.name}").stat().st_mode) == 0o700
    assert busy_disk == [["/nowhere/background", "endings", "node"]]
    assert "failures" not in runs.result()
    other = runs.make(run_id="ffffffff")
    assert runs.attempt(run.name) == DONE
    assert (runs.left(), runs.saved()) == (["7", "7.00000000"], other)


def test_a_removal_goes_on_in_other_turns(
    runs: Runs, busy_disk: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.make()
    released(runs, run)
    monkeypatch.setattr(endings, "REMOVAL_S", 0.0)
    assert runs.attempt(run.name) == MORE
    monkeypatch.undo()
    assert runs.attempt(run.name) == DONE
    assert runs.left() == []


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
    run = runs.make()
    released(runs, run)
    assert tree(f"{runs.workspace}/.{run.name}") == ALL
    assert runs.attempt(run.name) == DONE
    assert runs.left() == []


@pytest.mark.threat(43)
@pytest.mark.parametrize("why", ["number", "space"])
def test_not_everything_may_wait_to_be_removed(
    runs: Runs, busy_disk: list[list[str]], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    most = release.MOST_REMOVALS if why == "number" else 0
    if why == "space":
        monkeypatch.setattr(waiting, "is_short_of_space", lambda _workspace: True)
    for number in range(1, most + 2):
        released(runs, runs.make(job_id=number, view_id=number, run_id=f"{number:08x}"))
    assert len(runs.waiting()) == most
    assert [name for name in os.listdir(runs.workspace) if not name.startswith((".", "import."))] == []
    other = runs.make(job_id=99, view_id=99, run_id="0000ffff")
    released(runs, other._replace(uid=other.uid + 1))
    assert len(runs.waiting()) == most + (why == "number")


def test_a_disk_that_does_not_move_it_removes_it_where_it_is(
    runs: Runs, busy_disk: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.make()
    real = os.rename

    def refuses(source: str, target: str, **where: int) -> None:
        if source == run.place:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, target, **where)

    monkeypatch.setattr(os, "rename", refuses)
    released(runs, run)
    (name,) = runs.waiting()
    assert Path(run.directory, "tmp/mine").exists()
    assert runs.attempt(name) == DONE
    assert runs.left() == []


def fails(*_: object) -> None:
    """Remove nothing, since something is held."""
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_run_that_cannot_be_removed_is_still_known(runs: Runs, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    run = runs.make()
    with monkeypatch.context() as patch:
        patch.setattr(removal, "remove_tree", fails)
        WAYS[way](runs, run)
    assert (os.listdir(runs.paths.view), runs.saved(), runs.waiting()) == ([], None, [run.name])
    (failure,) = runs.result()["failures"]
    assert (failure["step"], failure["code"]) == ("release", WorkspaceBusy.code)
    assert runs.attempt(run.name) == DONE
    assert (runs.left(), runs.saved()) == ([], None)


@pytest.mark.threat(21)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_view_that_cannot_be_removed_costs_nothing_else(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    run = runs.make(topics=["test.7.0/caches"])
    with monkeypatch.context() as patch:
        patch.setattr(view, "_remove", fails)
        WAYS[way](runs, run)
    codes = [failure["code"] for failure in runs.result()["failures"]]
    assert codes == [WorkspaceBusy.code, StoreFailed.code]
    assert (runs.left(), runs.saved()) == (["7"], run)
    WAYS[way](runs, run._replace(topics=[]))
    assert (runs.left(), runs.saved()) == ([], None)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("way", sorted(WAYS))
def test_only_this_run_ends(runs: Runs, way: str) -> None:
    other = runs.make(run_id="ffffffff", restarts=1)
    run = runs.make()
    for _ in range(2):
        WAYS[way](runs, run)
    assert sorted(os.listdir(runs.workspace)) == [other.place]
    assert tree(other.directory) == [other.mark, *ALL[1:]]


@pytest.mark.parametrize("died", [False, True])
@pytest.mark.parametrize("options", [None, NO_TIME])
def test_what_was_at_its_place_before_it_stays(runs: Runs, options: Options | None, died: bool) -> None:
    """Of an earlier job of that id: the run has a name of its own, or died before it had one."""
    other = runs.make(run_id="ffffffff")
    before = [other.mark, *ALL[1:]]
    run = runs.make()
    assert tree(other.directory) == before
    assert run.place == run.name != other.place
    if died:
        shutil.rmtree(run.directory)
        run = run._replace(apart=False)
    runs.end(run, options)
    released(runs, run)
    for name in runs.waiting():
        found = runs.queue.find(name)
        assert found
        waiting.put(runs.queue, found, run, 0, is_done=True)
        assert runs.attempt(name) == DONE
    assert not os.path.exists(f"{runs.workspace}/{run.name}")
    assert tree(other.directory) == before
    assert stat.S_IMODE(os.stat(other.directory).st_mode) == 0o711


def test_a_run_that_waits_has_its_cache(runs: Runs) -> None:
    """It is root's alone, and the job's next run has its place for itself."""
    run = runs.make()
    runs.end(run, NO_TIME)
    going = runs.workspace / run.going
    assert (tree(str(going)), stat.S_IMODE(going.stat().st_mode)) == (CLOSED, 0o700)
    assert (runs.left(), runs.saved(), runs.to_harvest()) == (sorted([going.name, run.name]), None, [run.name])
    second = runs.make(run_id="ffffffff")
    assert second.place == run.place
    runs.end(run, NO_TIME)  # as an epilog that comes twice
    assert runs.to_harvest() == [run.name]


def test_an_epilog_that_comes_again_does_not_harvest_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has died after it has written down what is left, and before it has removed the run's state."""
    run = runs.make()
    waiting.leave(runs.queue, run, is_done=True)
    monkeypatch.setattr(harvest, "run", lambda *_: pytest.fail("harvested again"))
    runs.end(run, Options(SOON))
    assert (runs.saved(), runs.waiting(), os.listdir(runs.paths.view)) == (None, [run.name], [])


def test_what_is_left_is_harvested_with_what_there_is_then(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.make()
    runs.end(run, NO_TIME)
    answers = iter([(["numba"], False), ([], False), ([], True)])
    asked: list[list[str]] = []

    def attempts(context: Context, *_: object) -> Harvested:
        asked.append(context.run.left)
        left, is_done = next(answers)
        return Harvested(changed(context.run, left=left), is_done=is_done, degraded=[])

    monkeypatch.setattr(harvest, "harvest", attempts)
    assert [runs.attempt(run.name) for _ in range(3)] == [LATER, LATER, DONE]
    assert asked == [["numba"], ["numba"], []]  # at last only the job's other nodes have to be told
    assert runs.left() == []


@pytest.mark.parametrize("why", ["old", "from the future", "no space"])
def test_what_waits_for_too_long_is_given_up(runs: Runs, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    run = runs.make()
    runs.end(run, NO_TIME)
    (item,) = runs.queue.all()
    found = waiting.read(runs.queue, item)
    assert found
    since = {"old": 0.0, "from the future": 9e9}.get(why, found[0].since)
    waiting.put(runs.queue, item, found[1], since, is_done=False)
    if why == "no space":
        monkeypatch.setattr(waiting, "is_short_of_space", lambda _workspace: True)
    assert runs.attempt(run.name) == DONE
    reason = {"no space": waiting.NO_SPACE}.get(why, waiting.TOO_OLD)
    (event,) = runs.events("harvest.dropped")
    assert (event["reason"], event["profiles"], event["job_id"]) == (reason, ["numba"], 7)
    assert runs.left() == []


def test_the_oldest_make_room(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.limit(2)
    for number in (1, 2, 3):
        runs.end(runs.make(job_id=number, view_id=number, run_id=f"{number:08x}"), NO_TIME)
        for item in runs.queue.all():  # an hour later
            os.rename(
                f"{runs.queue.directory}/{item.name}",
                f"{runs.queue.directory}/{item._replace(due=item.due - 3600).name}",
            )
    assert runs.to_harvest() == ["2.00000002", "3.00000003"]
    answers = iter([True, False])
    monkeypatch.setattr(waiting, "is_short_of_space", lambda _workspace: next(answers))
    runs.end(runs.make(), NO_TIME)
    dropped = [(event["run"], event["reason"], event["job_id"]) for event in runs.events("harvest.dropped")]
    assert dropped == [
        ("1.00000001", waiting.NO_ROOM, 1),
        ("2.00000002", waiting.NO_ROOM, 2),
        ("3.00000003", waiting.NO_SPACE, 3),
    ]
    assert runs.left() == sorted([".7.0a1b2c3d", "7.0a1b2c3d"])


def test_nothing_is_given_up_while_an_attempt_is_at_it(runs: Runs) -> None:
    runs.limit(0)
    run = runs.make()
    with waiting.at_work_on(run) as is_ours:
        assert is_ours
        runs.end(run, NO_TIME)
        assert runs.attempt(run.name) == LATER
    assert runs.to_harvest() == ["7.0a1b2c3d"]


@pytest.mark.threat(21)
def test_one_that_cannot_be_removed_costs_no_other(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        runs.end(runs.make(job_id=number, view_id=number, run_id=f"{number:08x}"), NO_TIME)
    runs.limit(0)
    real = remove_tree

    def fragile(dir_fd: int, name: str, deadline: Any) -> None:  # noqa: ANN401
        if name == ".1.00000001":
            fails()
        real(dir_fd, name, deadline)

    monkeypatch.setattr(removal, "remove_tree", fragile)
    ended = runs.end(runs.make(), NO_TIME)
    assert isinstance(ended.failure, WorkspaceBusy)
    assert (runs.waiting(), runs.saved()) == (["1.00000001"], None)


@pytest.mark.threat(27)
def test_nobody_makes_others_lose_theirs(runs: Runs) -> None:
    for number, uid in ((1, 11), (2, 22), (3, 22), (4, 22), (5, 22)):
        run = runs.make(job_id=number, view_id=number, run_id=f"{number:08x}")
        runs.limit(3)
        runs.end(run._replace(uid=uid), NO_TIME)
    assert len(runs.to_harvest()) == 3
    assert "1.00000001" in runs.to_harvest()


def test_a_damaged_item_goes_and_leaves_the_directory_to_maintenance(runs: Runs) -> None:
    run = runs.make()
    runs.end(run, NO_TIME)
    (item,) = runs.queue.all()
    Path(runs.queue.directory, item.name).write_bytes(b"{")
    assert runs.attempt(run.name) == DONE
    assert os.listdir(runs.workspace) == [run.going]

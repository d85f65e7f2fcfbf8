"""Jobs that run are harvested when it is time, or at their own word: one at a time, and until they end."""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.lib.node import NODE, Node
from tests.lib.runs import a_run, changed
from warmstart import run_end
from warmstart.audit.log import Log
from warmstart.entry import background
from warmstart.errand import Errand, Errands
from warmstart.harvest import live
from warmstart.harvest.live import LONGEST_S, ROUNDS, WORD
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, try_flock
from warmstart.paths import Installation
from warmstart.run import state as run_state
from warmstart.run.state import Run
from warmstart.session import Session, open_session
from warmstart.steps import harvest
from warmstart.steps.contract import Context, Outcome
from warmstart.steps.harvest import Options

FIRST_S = 900


class Runs:
    """A node with runs that are watched, and what is harvested of them."""

    def __init__(self, site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.paths = site.paths
        self.looked: list[tuple[int, float]] = []  # job, and for how long what is taken must not have changed
        self.rounds: list[tuple[str, int]] = []  # node and number

        def run_live(context: Context, options: Options) -> Outcome:
            with opened_dir(context.run.directory) as fd:
                assert not try_flock(fd)  # so that whoever ends the run ends the harvest
            self.rounds.append((context.run.node, options.number))
            self.looked.append((context.run.job_id, time.time() - options.settled_ns / 1e9))
            return Outcome()

        monkeypatch.setattr(harvest, "run_live", run_live)
        monkeypatch.setattr(process, "be_idle", lambda: None)

    def begin(self, job: int, first_s: int = FIRST_S, **changes: object) -> Run:
        """Have a job's prolog leave its record and the errand."""
        given = {"publish_scope": "user-1-a", "live": True, "node": NODE, **changes}
        given["workspace"] = f"{self.site.base}/workspace/{given['node']}"
        record = a_run(job_id=job, view_id=job, run_id=f"{job:08x}", **given)
        paths = self.site.installation.node(record.node)
        os.makedirs(f"{record.directory}/cache")
        Path(record.directory, record.mark).touch()
        os.makedirs(f"{paths.state}/{job}", mode=0o700)
        run_state.save(paths.state, record)
        policy = self.site.policy
        policy = policy._replace(harvest=policy.harvest._replace(while_running=first_s))
        if "look" not in live.watch(policy, paths, record):  # it was left while the policy had another rule
            live.watch(policy, paths, changed(record, fresh=False, publish_scope="site"))
        return record

    def program(self) -> list[int]:
        """Run the program as the timer does; return the jobs that were harvested."""
        before = len(self.looked)
        assert background.main(self.site.installation.prefix, [ROUNDS.name]) == 0
        return [job for job, _ in self.looked[before:]]

    def waiting(self, node: str = NODE) -> list[Errand]:
        return Errands(self.site.installation.node(node), ROUNDS).all()


@pytest.fixture
def runs(node: Node, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return a node of a site that harvests jobs while they run."""
    policy = node.policy
    node.write(policy._replace(harvest=policy.harvest._replace(while_running=FIRST_S)))
    os.makedirs(node.paths.state, mode=0o700)
    return Runs(node, monkeypatch)


def test_it_is_not_time_yet(runs: Runs) -> None:
    """Then no session begins, which would leave lines."""
    runs.begin(7)
    assert (runs.program(), runs.site.events()) == ([], [])


def test_a_round_is_put_off_twice_as_far_each_time(runs: Runs) -> None:
    """An entry must not have changed for a tenth of the first interval; a day is the longest."""
    record, ago = runs.begin(7, first_s=-1), []
    for _ in range(9):
        (errand,) = runs.waiting()
        Errands(runs.paths, ROUNDS).hasten(errand)
        assert runs.program() == [7]
        (errand,) = runs.waiting()
        ago.append(round(errand.due - time.time(), -1))
    assert ago == [min(FIRST_S * 2**number, LONGEST_S) for number in range(1, 10)]
    assert 90 <= runs.looked[0][1] < 100
    assert errand.owner == str(record.uid)


@pytest.mark.parametrize("place", ["cache", "caches/c0ffee00/cache"])
def test_a_job_says_itself_that_it_is_time(runs: Runs, place: str) -> None:
    record = runs.begin(7)
    cache = Path(record.directory, place)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / WORD).symlink_to("/etc/passwd")
    assert runs.program() == []
    (cache / WORD).unlink()
    time.sleep(0.02)
    (cache / WORD).touch()
    os.utime(cache / WORD, (1, 1))  # its ctime counts
    assert [runs.program(), runs.program()] == [[7], []]


def test_the_head_node_of_a_job_numbers_its_rounds(runs: Runs) -> None:
    """The others wait for it, and take part in the youngest; all have the next one at the same time."""
    first_s, both = {"n1": 900, "n2": -1}, {"nodelist": "n[1-2]"}
    for node, after_s in first_s.items():
        runs.begin(7, first_s=after_s, node=node, **both)
    runs.program()
    assert runs.rounds == []
    for number in (1, 2):
        Errands(runs.paths, ROUNDS).hasten(*runs.waiting())
        assert background.main(runs.site.installation.prefix, [ROUNDS.name, "n1"]) == 0
        assert runs.rounds[-1] == ("n1", number)
    runs.program()
    assert runs.rounds[2:] == [("n2", 2)]
    assert runs.waiting("n2") == runs.waiting()
    runs.program()
    assert runs.rounds[3:] == []


@pytest.mark.parametrize(
    "changes",
    [{"fresh": True}, {"publish_scope": ""}],
)
def test_what_is_harvested_at_its_end_alone_waits_for_it(runs: Runs, changes: dict[str, object]) -> None:
    """Such an errand is dropped, also that of a run of an earlier boot."""
    runs.begin(7, first_s=-1, **changes)
    assert (runs.program(), runs.waiting()) == ([], [])


def test_the_end_of_a_run_ends_its_harvest(runs: Runs) -> None:
    record = runs.begin(7, first_s=-1)
    stage = Path(runs.paths.stage)
    for name in (f"{record.name}.live.numba", f"{record.name}.key.live.numba", "8.0a1b2c3d.live.numba"):
        (stage / name / "entries").mkdir(parents=True)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with opened_dir(record.directory) as fd:
            try_flock(fd)
            os.write(writing, b"x")
            time.sleep(60)
        os._exit(0)
    assert os.read(reading, 1) == b"x"
    assert runs.program() == []  # the lock is held, so another one is at it
    with runs.site.client() as store:
        audit = Log(runs.site.policy.paths.audit, {"hook": "epilog", "run_id": record.run_id})
        ending = run_end.Ending(runs.site.policy, runs.paths, record, audit, store)
        run_end.supersede(ending, after(10))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert (runs.waiting(), os.path.lexists(record.directory)) == ([], False)
    assert os.listdir(stage) == ["8.0a1b2c3d.live.numba"]


def test_another_pods_node_is_left_alone(runs: Runs) -> None:
    runs.begin(7, first_s=-1)
    os.makedirs(runs.paths.root)
    with Path(runs.paths.kept).open("w") as held:
        assert try_flock(held.fileno())
        assert runs.program() == []
    assert len(runs.waiting()) == 1


def test_a_node_that_fails_stops_no_other_of_its_host(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.begin(7, first_s=-1)
    other = runs.site.installation.node("broken")
    os.makedirs(other.state)
    Errands(other, ROUNDS).put(Errand("1", 1, 0, "8.0a1b2c3d"), live.Watched("/none", 0))
    opened = open_session

    def opening(installation: Installation, hook: str, node: str) -> AbstractContextManager[Session]:
        if node == "broken":
            raise OSError(errno.EIO, "broken")
        return opened(installation, hook, node)

    monkeypatch.setattr(background, "open_session", opening)
    assert runs.site.installation.nodes()[0] == "broken"
    assert background.main(runs.site.installation.prefix, [ROUNDS.name]) == background.FAILED
    assert [job for job, _ in runs.looked] == [7]


def test_a_disk_that_does_not_say_which_nodes_there_are(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: Installation) -> list[str]:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(Installation, "nodes", failing)
    assert background.main(runs.site.installation.prefix, [ROUNDS.name]) == background.FAILED
